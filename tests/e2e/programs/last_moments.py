"""Grows by so many MB per second once a file exists, in its own process or in a worker."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--go", required=True)
parser.add_argument("--mb-s", type=float, default=40.0)
parser.add_argument("--worker", action="store_true")
args = parser.parse_args([*sys.argv[1:], *shlex.split(os.environ.get("TRAINING_WORDS", ""))])


def grow() -> None:
    held = []
    while True:
        held.append(b"x" * int(args.mb_s * 1e6 / 20))
        time.sleep(1 / 20)


if args.worker and os.fork() == 0:
    while not os.path.exists(args.go):
        time.sleep(0.01)
    grow()
while not os.path.exists(args.go) or args.worker:
    time.sleep(0.01)
grow()
