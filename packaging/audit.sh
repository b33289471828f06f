#!/bin/sh
# Known vulnerabilities of what is pinned in packaging/requirements-dev.txt, by pip-audit.
#
#   packaging/audit.sh             0: none known; 1: some, or it could not be looked up
#
# pip-audit goes into build/audit. Nothing of the lock is installed or run.
set -eu
cd "$(dirname "$0")/.."
tools=build/audit
if [ ! -x "$tools/bin/pip-audit" ]; then
    "${PYTHON:-python3}" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit || {
        rm -rf "$tools"
        echo "audit: pip-audit could not be installed, so NOTHING WAS CHECKED. It needs the network; try again: make audit" >&2
        exit 1
    }
fi
# Advisories know no +cpu.
sed 's/^\([A-Za-z0-9._-]*==[0-9.]*\)+[a-z0-9.]*/\1/; /^ *--hash/d; s/ *\\$//' \
    packaging/requirements-dev.txt >"$tools/requirements.txt"
said=$("$tools/bin/pip-audit" --disable-pip --no-deps --progress-spinner off --timeout 10 \
    -r "$tools/requirements.txt" 2>&1) && status=0 || status=$?
missed=$(printf '%s\n' "$said" | grep -c 'could not be audited' || true)
case $said in
    *'No known vulnerabilities'* | *'known vulnerabilit'*) ;;
    *) missed=all ;;
esac
# "No known vulnerabilities" is no answer where something was not asked, and an error's last line
# says what it was.
case $missed in
    0) printf '%s\n' "$said" ;;
    all) printf '%s\n' "$said" | tail -n 1 | cut -c 1-300 >&2 ;;
    *) printf '%s\n' "$said" |
        grep -v -e 'could not be audited' -e 'No known vulnerab' -e 'Skip Reason' -e '^-[- ]*$' || true ;;
esac
if [ "$missed" != 0 ]; then
    echo "audit: of $(grep -c == "$tools/requirements.txt") packages $missed could not be looked up: the list of advisories was not reached, or does not know them. Those were NOT CHECKED. It needs the network; try again: make audit" >&2
    exit 1
fi
exit "$status"
