"""
Mutation test: how many small faults in the decisions the tests find.

Changes one place of policy, forecast or diagnosis at a time, in a copy of the checkout. Then it
runs the tests that execute the changed line, the fastest first. A mutant survives if no test fails.
A test that fails without a change is left out and named.

Needs `pip install coverage`.

Usage: mutants.py [--count 200] [--seed 1] [--jobs 2] [--packages policy forecast diagnosis]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
CORE = Path("watchdog_app/core")
TESTS = ("tests/core", "tests/replay")
LEFT_OUT = ("tests/replay/test_replay_play.py",)  # records real programs: slow, and depends on time
MOST_TESTS = 120  # maximum for each mutant
MOST_S = 40.0  # maximum sum of the tests' times without a change
TIMEOUT_S = 240.0  # an endless loop counts as found
NICE = 10

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    path: Path
    line: int
    number: int  # index among the places of the module
    change: str


def mutated(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Change one place of the tree at a time and yield (line, change); the next step undoes it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for i, operator in enumerate(node.ops):
                node.ops[i] = COMPARISONS[type(operator)]()
                yield node.lineno, f"{_name(operator)} -> {_name(node.ops[i])}"
                node.ops[i] = operator
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            operator = node.op
            node.op = OPERATORS[type(operator)]()
            yield node.lineno, f"{_name(operator)} -> {_name(node.op)}"
            node.op = operator
        elif isinstance(node, ast.BoolOp):
            operator = node.op
            node.op = ast.And() if isinstance(operator, ast.Or) else ast.Or()
            yield node.lineno, f"{_name(operator)} -> {_name(node.op)}"
            node.op = operator
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            operator = node.op
            node.op = ast.UAdd()  # unary plus of a truth value is the value itself
            yield node.lineno, "not removed"
            node.op = operator
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = node.value
            node.value = not value if isinstance(value, bool) else value * 2 if value else 1
            yield node.lineno, f"{value} -> {node.value}"
            node.value = value


def _name(operator: ast.AST) -> str:
    return type(operator).__name__


def covering_tests(
    checkout: Path, folder: Path, packages: list[str]
) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """
    Run all tests once without a change.

    Args:
        checkout: a copy of the checkout.
        folder: folder for coverage's files.
        packages: packages of `CORE` whose lines are recorded.

    Returns:
        By module and line, the test functions that execute it, as pytest names them. And by test
        function, its seconds, for the functions that passed.
    """
    settings, junit, report = folder / "coveragerc", folder / "junit.xml", folder / "report.json"
    sources = "".join(f"\n  {CORE.as_posix().replace('/', '.')}.{each}" for each in packages)
    settings.write_text(
        f"[run]\nsource_pkgs ={sources}\ndata_file = {folder}/data\n"
        "dynamic_context = test_function\n"
    )
    coverage = [sys.executable, "-m", "coverage"]
    left_out = [f"--ignore={each}" for each in LEFT_OUT]
    run = [*coverage, "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "no:xdist"]
    subprocess.run(
        [*run, f"--junitxml={junit}", *left_out, *TESTS],
        cwd=checkout,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        [*coverage, "json", f"--rcfile={settings}", "--show-contexts", "-q", "-o", str(report)],
        cwd=checkout,
        check=True,
    )
    seconds: dict[str, float] = defaultdict(float)
    failed = set()
    for case in ET.parse(junit).iter("testcase"):
        path, name = case.get("classname", "").replace(".", "/"), case.get("name", "")
        ident = f"{path}.py::{name.partition('[')[0]}"
        seconds[ident] += float(case.get("time", 0.0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(ident)
    for ident in sorted(failed):
        print(f"left out, fails without a change: {ident}", flush=True)
        del seconds[ident]
    files = json.loads(report.read_text())["files"]
    by_line = {
        path: {
            int(line): [ident for name in names if (ident := _ident(checkout, name)) in seconds]
            for line, names in found["contexts"].items()
        }
        for path, found in files.items()
    }
    return by_line, dict(seconds)


def _ident(checkout: Path, context: str) -> str | None:
    """Convert `tests.core.test_x.test_y` to `tests/core/test_x.py::test_y`."""
    module, _, function = context.rpartition(".")
    if not module:  # code executed at import
        return None
    path = Path(*module.split(".")).with_suffix(".py")
    for folder in ("", *TESTS):
        if (checkout / folder / path).is_file():
            return f"{Path(folder) / path}::{function}"
    return None


def places(
    checkout: Path, packages: list[str], tests: dict[str, dict[int, list[str]]]
) -> list[Mutant]:
    """Return all places that can be changed on lines that a test executes."""
    found = []
    for package in packages:
        for path in sorted((checkout / CORE / package).rglob("*.py")):
            relative = path.relative_to(checkout)
            covered = tests.get(str(relative), {})
            for number, (line, change) in enumerate(mutated(ast.parse(path.read_text()))):
                if covered.get(line):
                    found.append(Mutant(relative, line, number, change))
    return found


def chosen_tests(tests: list[str], seconds: dict[str, float]) -> list[str]:
    """Return the tests for a mutant, the fastest first, within the limits."""
    found, passed_s = [], 0.0
    for ident in sorted(tests, key=seconds.__getitem__)[:MOST_TESTS]:
        passed_s += seconds[ident]
        if found and passed_s > MOST_S:
            break
        found.append(ident)
    return found


def survives(mutant: Mutant, tests: list[str], checkout: Path) -> bool:
    """Return whether all tests pass with the change."""
    target = checkout / mutant.path
    original = target.read_text()
    tree = ast.parse(original)
    for number, _ in enumerate(mutated(tree)):
        if number == mutant.number:
            target.write_text(ast.unparse(tree))
            break
    try:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", *tests],
            cwd=checkout,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        target.write_text(original)
    if result.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest could not run: {result.stdout[-2000:]}")
    return result.returncode == 0


def main() -> int:
    """Run the mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packages", nargs="+", default=["policy", "forecast", "diagnosis"])
    args = parser.parse_args()
    os.nice(NICE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkouts: Queue[Path] = Queue()
        for job in range(args.jobs):
            checkout = folder / str(job)
            for part in ("watchdog_app", "tests", "docs", "pyproject.toml"):
                source = ROOT / part
                copy = shutil.copytree if source.is_dir() else shutil.copy
                checkout.mkdir(exist_ok=True)
                copy(source, checkout / part)
            checkouts.put(checkout)
        tests, seconds = covering_tests(folder / "0", folder, args.packages)
        every = places(folder / "0", args.packages, tests)
        chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
        print(f"{len(every)} places on executed lines; {len(chosen)} mutants", flush=True)

        def run(mutant: Mutant) -> tuple[Mutant, bool]:
            checkout = checkouts.get()
            try:
                there = chosen_tests(tests[str(mutant.path)][mutant.line], seconds)
                return mutant, survives(mutant, there, checkout)
            finally:
                checkouts.put(checkout)

        made: Counter[str] = Counter()
        found: Counter[str] = Counter()
        with ThreadPoolExecutor(args.jobs) as pool:
            for mutant, survived in pool.map(run, chosen):
                package = mutant.path.parent.name
                made[package] += 1
                found[package] += not survived
                if survived:
                    print(f"survived: {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
    for package in sorted(made):
        print(f"{package:<12} {found[package]} of {made[package]} found")
    share = found.total() / max(1, made.total())
    print(f"all          {found.total()} of {made.total()} found, {share:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
