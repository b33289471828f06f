#!/bin/sh
# Run the tests with .venv's Python: packaging/run_tests.sh [words for pytest]
#
# Without words all of them, in lots side by side: see run_tests.py.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python

if [ $# -gt 0 ]; then exec "$python" -m pytest "$@"; fi
exec "$python" packaging/run_tests.py
