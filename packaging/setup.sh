#!/bin/sh
# Make the virtual environment .venv and install watchdog into it.
#
#   packaging/setup.sh run     what the daemon and the commands need
#   packaging/setup.sh test    and all that the tests, the demo and the benchmarks need
#   packaging/setup.sh vm      what the daemon needs, and the emulator of tests/vm
#
# Debian keeps venv apart from python3, and the tests want a real message bus, swap, shells
# that read our completions, and a terminal.
# Missing packages are installed where we may (root, or sudo that asks nothing);
# elsewhere the exact command is printed. Runs again only when pyproject.toml changed.
set -eu
cd "$(dirname "$0")/.."
what=${1:-run}
venv=.venv

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

apt_install() {
    if command -v apt-get >/dev/null 2>&1; then
        say "installing $* with apt-get"
        if as_root sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"' sh "$@" >/dev/null
        then return 0
        fi
    fi
    return 1
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then echo "$candidate"; return 0
        fi
    done
    return 1
}

if ! python=$(find_python); then
    apt_install python3 python3-venv || true
    if ! python=$(find_python); then
        say "Python 3.11 or newer was not found. Install it (Debian: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3 $what"
        exit 1
    fi
fi

if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    if ! apt_install python3-venv; then
        say "Python's venv module is missing. Run: sudo apt-get install python3-venv"
        exit 1
    fi
fi

if [ "$what" = test ]; then
    missing=""
    command -v dbus-daemon >/dev/null 2>&1 || missing="$missing dbus"
    /usr/bin/python3 -c "import dbusmock" 2>/dev/null || missing="$missing python3-dbusmock"
    command -v free >/dev/null 2>&1 || missing="$missing procps"
    command -v mkswap >/dev/null 2>&1 || missing="$missing util-linux mount"
    command -v zsh >/dev/null 2>&1 || missing="$missing zsh"
    command -v fish >/dev/null 2>&1 || missing="$missing fish"
    command -v tmux >/dev/null 2>&1 || missing="$missing tmux"
    # The stub driver of the GPU tests is compiled.
    command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
    command -v strace >/dev/null 2>&1 || missing="$missing strace"
    command -v man >/dev/null 2>&1 || missing="$missing man-db"
    command -v desktop-file-validate >/dev/null 2>&1 || missing="$missing desktop-file-utils"
    command -v appstreamcli >/dev/null 2>&1 || missing="$missing appstream"
    command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
    command -v lintian >/dev/null 2>&1 || missing="$missing lintian"
    command -v pybuild >/dev/null 2>&1 || missing="$missing debhelper dh-python pybuild-plugin-pyproject python3-all python3-hatchling python3-pip fakeroot"
    # dpkg-buildpackage asks for it, whatever a package compiles.
    dpkg -s build-essential >/dev/null 2>&1 || missing="$missing build-essential"
    # PyInstaller packs the interpreter as a shared library, which Debian keeps apart.
    ldconfig -p 2>/dev/null | grep -q 'libpython3.*\.so' || missing="$missing libpython3-dev"
    # A cluster of one node, for the jobs of examples/slurm.
    command -v slurmctld >/dev/null 2>&1 || missing="$missing slurm-wlm munge"
    command -v debootstrap >/dev/null 2>&1 || missing="$missing debootstrap"
    # A desktop without a screen, for the tray: 30 s to install, and its tests click the real icon.
    command -v Xvfb >/dev/null 2>&1 || missing="$missing xvfb"
    command -v xfce4-panel >/dev/null 2>&1 || missing="$missing xfce4-panel xfce4-notifyd openbox adwaita-icon-theme fonts-dejavu-core"
    command -v xdotool >/dev/null 2>&1 || missing="$missing xdotool x11-utils"
    command -v import >/dev/null 2>&1 || missing="$missing imagemagick"
    # JupyterLab's pages are clicked in it.
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    command -v dunst >/dev/null 2>&1 || missing="$missing dunst"
    command -v xterm >/dev/null 2>&1 || missing="$missing xterm"
    if [ -n "$missing" ]; then
        # Beside the download of TensorFlow: none of it is needed for that.
        (
            # shellcheck disable=SC2086 - a list of package names
            apt_install $missing || say "not installed:$missing. The tests that need them will say so and be skipped. Run: sudo apt-get install$missing"
        ) &
        beside=$!
        # Whatever else ends, packages are not left half installed.
        trap 'wait "$beside" || true' EXIT
        trap 'exit 130' INT TERM
    fi
fi

if [ "$what" = vm ]; then
    missing=""
    command -v qemu-system-x86_64 >/dev/null 2>&1 || missing="$missing qemu-system-x86"
    command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap"
    command -v mke2fs >/dev/null 2>&1 || [ -x /sbin/mke2fs ] || missing="$missing e2fsprogs"
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086 - a list of package names
        apt_install $missing || {
            say "the virtual machine needs:$missing. Run: sudo apt-get install$missing"
            exit 1
        }
    fi
    what=run
fi

# Without bytecode each process that imports TensorFlow and Keras compiles them: 8.5 s instead of
# 3.4 s. Only the large packages: the others are compiled when a test first imports them.
compile_frameworks() {
    [ ! -f "$venv/.compiled" ] || return 0
    say "compiling the frameworks to bytecode"
    (
        cd "$venv"/lib/python3*/site-packages || exit 0
        set --
        for package in tensorflow keras tf_keras torch jax numpy scipy transformers lightning pytorch_lightning; do
            [ ! -d "$package" ] || set -- "$@" "$package"
        done
        # A file that does not compile (templates, syntax of another Python) is no error here.
        env -u PYTHONDONTWRITEBYTECODE ../../../bin/python -m compileall -qq -j2 "$@" || true
    ) >/dev/null 2>&1
    touch "$venv/.compiled"
}

stamp=$venv/.installed-$what
if [ "$what" = run ] && [ "$venv/.installed-test" -nt pyproject.toml ]; then
    exit 0 # what the tests need holds all that the daemon needs
fi
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ -x "$venv/bin/watchdog" ]; then
    [ "$what" != test ] || compile_frameworks
    exit 0
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
case $what in
    run) extras="" ;;
    test) extras="[tensorflow,dev]" ;;
    *) say "unknown target '$what'; use run or test"; exit 2 ;;
esac
note=""
[ "$what" = test ] && note="; TensorFlow is about 600 MB: the first time takes some minutes"
say "installing watchdog$extras into $venv$note"
compile=""
[ "$what" = test ] && compile=--no-compile # pip compiles on one core; compile_frameworks uses two
# shellcheck disable=SC2086 - one word or none
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $compile --editable ".$extras"
if [ "$what" = test ]; then
    rm -f "$venv/.compiled"
    compile_frameworks
fi
if [ "$what" = test ] && command -v apt-get >/dev/null 2>&1; then
    # What bench/cost.py compares with, and readers of metrics for their tests. Unpacked, not
    # installed: that would start them, and some of them kill.
    wait
    mkdir -p "$venv/neighbours"
    (
        cd "$venv/neighbours" && apt-get download -qq nohang earlyoom prometheus prometheus-node-exporter prometheus-alertmanager >/dev/null 2>&1 &&
            for package in *.deb; do dpkg -x "$package" root; done
    ) || say "nohang, earlyoom and Prometheus could not be fetched: tests of metrics are skipped, and bench/cost.py tries it again"
    # The server of ntfy is in newer releases of Debian only. Its lists go into a folder of our own.
    (
        cd "$venv/neighbours" && mkdir -p lists/partial cache/archives/partial &&
            echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >ntfy.list &&
            set -- -qq -o Dir::Etc::sourcelist="$PWD/ntfy.list" -o Dir::Etc::sourceparts=/dev/null \
                -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=root \
                -o Acquire::http::Timeout=20 -o Acquire::Retries=0 &&
            apt-get "$@" update >/dev/null 2>&1 && apt-get "$@" download ntfy >/dev/null 2>&1 &&
            dpkg -x ntfy_*.deb root && rm -r lists cache ntfy.list
    ) || say "ntfy could not be fetched: tests with its server are skipped"
fi
touch "$stamp"
