#!/bin/sh
# Build the Debian package from this source tree: packaging/linux/build-deb.sh [FOLDER]
#
# Needs: apt-get install build-essential debhelper dh-python pybuild-plugin-pyproject \
#                        python3-all python3-hatchling python3-pip fakeroot
# The package comes to FOLDER (default: dist/). What Debian lacks (nvidia-ml-py, textual) is
# fetched by pip first and laid beside the package; everything else is Debian's own.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mkdir -p "${1:-$root/dist}" && cd "${1:-$root/dist}" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/watchdog-deb.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
PATH=/usr/sbin:/usr/bin:/sbin:/bin

tree=$work/watchdog-app
mkdir "$tree"
for part in watchdog_app packaging pyproject.toml README.md LICENSE; do
    cp -a "$root/$part" "$tree/"
done
# Caches of Python and of the tools that read it are no part of the package.
find "$tree" -mindepth 1 -type d '(' -name __pycache__ -o -name '.*' ')' -prune -exec rm -rf {} +
mv "$tree/packaging/linux/debian" "$tree/debian"
# Debian 12's hatchling refuses classifiers that are younger than itself.
sed -i '/Programming Language :: Python :: 3.13/d' "$tree/pyproject.toml"

python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --no-compile --target "$tree/vendor" "nvidia-ml-py>=12.560" "textual>=0.86" 2>"$work/pip.log" || {
    cat "$work/pip.log" >&2
    exit 1
}
python3 "$tree/packaging/linux/trim_vendor.py" "$tree/vendor" "$tree/debian/copyright"

(cd "$tree" && dpkg-buildpackage -us -uc -b >"$work/build.log" 2>&1) || {
    tail -40 "$work/build.log" >&2
    exit 1
}
cp "$work"/*.deb "$out/"
ls "$out"/*.deb
