"""Allocates memory at a rate and then sleeps, without an agent: `hog.py MB_PER_S [MOST_MB]`."""

import sys
import time

rate, most = float(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
kept, eaten = [], 0.0
while True:
    time.sleep(0.05)
    if eaten < most:
        piece = rate * 0.05
        kept.append(b"x" * int(piece * 1e6))
        eaten += piece
