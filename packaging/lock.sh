#!/bin/sh
# Write packaging/requirements-dev.txt anew: every package that development installs, with its
# version and the hashes of its files, for Python 3.11.
#
#   packaging/lock.sh              the newest versions that pyproject.toml allows
#   packaging/lock.sh --keep       as they are, and only what pyproject.toml asks besides
#
# Needs an index of packages, as pip is set up for; uv goes into build/lock, nothing else changes.
# Installed from the lock:
#   python3.11 -m venv .venv && .venv/bin/pip install --require-hashes -r packaging/requirements-dev.txt
#   .venv/bin/pip install --no-deps -e .
set -eu
cd "$(dirname "$0")/.."
lock=packaging/requirements-dev.txt
tools=build/lock
[ -x "$tools/bin/uv" ] || {
    "${PYTHON:-python3}" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 uv || {
        echo "lock: uv could not be installed; $lock is AS IT WAS. It needs an index of packages." >&2
        exit 1
    }
}
[ "${1:-}" = --keep ] || rm -f "$lock.new"
[ "${1:-}" != --keep ] || cp "$lock" "$lock.new"

# uv reads no pip.conf: what pip is set up for is handed on, and is not written into the lock.
set --
for key in extra-index-url index-url find-links; do
    for place in $("$tools/bin/python" -m pip config get "global.$key" 2>/dev/null || true); do
        case $place in file://*) [ -d "${place#file://}" ] || continue ;; esac
        set -- "$@" "--$key" "$place"
    done
done
"$tools/bin/uv" pip compile --quiet --generate-hashes --python-version 3.11 --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links --index-strategy unsafe-best-match "$@" \
    --extra dev --extra tensorflow -o "$lock.new" pyproject.toml >/dev/null || {
    rm -f "$lock.new"
    echo "lock: not every package could be found; $lock is AS IT WAS. It needs an index of packages." >&2
    exit 1
}
{
    echo "# Made by packaging/lock.sh from pyproject.toml (extras dev, tensorflow) for Python 3.11."
    echo "# A build of torch with +cpu in its version comes from PyTorch's own index of such builds."
    cat "$lock.new"
} >"$lock"
rm -f "$lock.new"
echo "lock: $(grep -c '==' "$lock") packages in $lock"
