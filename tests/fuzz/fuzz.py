"""
Coverage-guided fuzzing of every parser of foreign data.

    make fuzz                      every target for 20 s; tests/fuzz/corpus keeps findings
    make fuzz ARGS="--seconds 600 framing configuration"

Atheris runs libFuzzer with one process per target. It writes an input that breaks a parser to
tests/fuzz/corpus/TARGET. The tests read that file from then on: fix the parser. Inputs that reach
new code go to build/fuzz, which is not committed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]
_ONE = "--one"  # option of a child process that fuzzes one target
_MOST_BYTES = 4096
_MOST_MIB = 1024  # a reader that holds more memory has a bug
_MOST_S = 5  # so has a reader that takes longer


def run_one(name: str, seconds: int) -> None:
    """Fuzz one target in this process; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["watchdog_app"]):
        from fuzz_targets import TARGETS, WORDS

    build = ROOT / "build" / "fuzz" / name
    build.mkdir(parents=True, exist_ok=True)
    words = build.parent / "words.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS if len(word) <= 64))
    atheris.Setup(
        [
            sys.argv[0], f"-max_total_time={seconds}", f"-max_len={_MOST_BYTES}",
            f"-rss_limit_mb={_MOST_MIB}", f"-timeout={_MOST_S}", f"-dict={words}",
            f"-artifact_prefix={build.parent}/{name}-", "-print_final_stats=0", "-verbosity=0",
            str(build), str(HERE / "corpus" / name),
        ],
        TARGETS[name],
    )  # fmt: skip
    atheris.Fuzz()


def main() -> int:
    """Fuzz the targets one after the other; return 1 if one has a finding."""
    from fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("targets", nargs="*", choices=[[], *sorted(TARGETS)], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=20, help="for each target (20)")
    args = parser.parse_args()
    try:
        import atheris  # noqa: F401 - asked here, so that its absence is told once
    except ImportError:
        print("atheris is not installed: .venv/bin/python -m pip install -e '.[fuzz]'")
        return 2
    found = 0
    for name in args.targets or sorted(TARGETS):
        print(f"{name}: {args.seconds} s", flush=True)
        (HERE / "corpus" / name).mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, __file__, _ONE, name, str(args.seconds)],
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        broken = sorted((ROOT / "build" / "fuzz").glob(f"{name}-*"))
        for path in broken:
            data = path.read_bytes()
            path.unlink()
            kept = HERE / "corpus" / name / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
            kept.write_bytes(data)
            print(f"  found: {kept.relative_to(ROOT)}")
            found += 1
        if broken or done.returncode:
            print("\n".join(f"  {line}" for line in done.stderr.splitlines()[-25:]))
            found += not broken
    print("nothing was found" if not found else f"{found} findings: mend them, keep the inputs")
    return 1 if found else 0


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:2] == [_ONE]:  # a child must instrument the package before it imports it
        run_one(sys.argv[2], int(sys.argv[3]))
    sys.exit(main())
