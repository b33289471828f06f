"""Grows by so many MB per second once a file exists."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--go", required=True)
parser.add_argument("--mb-s", type=float, default=40.0)
args = parser.parse_args([*sys.argv[1:], *shlex.split(os.environ.get("TRAINING_WORDS", ""))])


while not os.path.exists(args.go):
    time.sleep(0.01)
held = []
while True:
    held.append(b"x" * int(args.mb_s * 1e6 / 20))
    time.sleep(1 / 20)
