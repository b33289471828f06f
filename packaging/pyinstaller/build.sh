#!/bin/sh
# Make watchdog into one folder that runs without Python: packaging/pyinstaller/build.sh [FOLDER]
#
# Needs: a Python with watchdog and PyInstaller (pip install -e '.[dev]'); PYTHON names it, else
# .venv. The folder comes to FOLDER/watchdog (default: dist/watchdog). It runs on systems whose
# C library is as new as that of the machine it was built on, or newer.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mkdir -p "${1:-$root/dist}" && cd "${1:-$root/dist}" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/watchdog-frozen.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
python=${PYTHON:-$root/.venv/bin/python}

# PyInstaller keeps a cache in the home folder unless it is told another.
PYINSTALLER_CONFIG_DIR=$work/cache "$python" -m PyInstaller --noconfirm --log-level WARN \
    --distpath "$out" --workpath "$work/build" "$root/packaging/pyinstaller/watchdog.spec" \
    >"$work/build.log" 2>&1 || {
    tail -40 "$work/build.log" >&2
    exit 1
}
ls -d "$out/watchdog"
