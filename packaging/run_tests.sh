#!/bin/sh
# Run the tests with .venv's Python: packaging/run_tests.sh [words for pytest]
#
# Without words all of them, in two lots side by side: half of the time a test waits for a daemon.
# Daemons look at every process of the user. The lot without those that may act runs in a process
# namespace of its own, where its daemons see nothing of the other lot; it is itself seen from
# outside, and left alone since its environment names another daemon's runtime folder. Where no
# namespace can be made, one lot comes after the other.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python

if [ $# -gt 0 ]; then exec "$python" -m pytest "$@"; fi

watchers=""
others=""
for path in tests/*; do
    case $path in
        tests/daemon | tests/e2e | tests/enable | tests/examples | tests/jupyter | tests/top | tests/tray)
            watchers="$watchers $path" ;;
        tests/conftest.py | tests/fixtures | tests/gpu_stub | tests/__pycache__) ;;
        *) others="$others $path" ;;
    esac
done

apart="unshare --fork --pid --mount-proc --kill-child"
if ! $apart true 2>/dev/null; then exec "$python" -m pytest; fi

log=$(mktemp)
elsewhere=$(mktemp -d)
# A shell is process 1 in there, as pytest would be an odd one; and what a shell puts into the
# background ignores Ctrl-C, which tests send.
heard='import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])'
# A lot that hangs is to be seen, not waited for.
# shellcheck disable=SC2086 # lists of words
WATCHDOG_RUNTIME_DIR="$elsewhere" timeout 2700 $apart sh -c '"$@"; exit $?' sh "$python" -c "$heard" "$python" -m pytest -p no:cacheprovider $others >"$log" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null; tail -n 40 "$log"; rm -rf "$log" "$elsewhere"; exit 130' INT TERM
# shellcheck disable=SC2086
timeout --foreground 2700 "$python" -m pytest $watchers
first=$?
wait "$beside"
second=$?
echo
echo "And the tests that ran beside them:"
cat "$log"
rm -rf "$log" "$elsewhere"
if [ "$first" -eq 0 ] && [ "$second" -eq 0 ]; then
    echo "All tests passed, in both lots."
    exit 0
fi
echo "Failed: pytest ended with $first in the first lot, with $second in the second." >&2
exit 1
