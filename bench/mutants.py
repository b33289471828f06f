"""
How many small faults in the decisions the tests find.

Changes one place of policy, forecast or diagnosis at a time, in a copy of the checkout, and runs
the tests that execute the changed line. A mutant that no test fails for has survived.

Needs `pip install coverage`.

Usage: mutants.py [--count 200] [--seed 1] [--jobs 2] [--packages policy forecast diagnosis]
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
CORE = Path("watchdog_app/core")
TESTS = ("tests/core", "tests/replay")
MOST_TESTS = 120  # for each mutant, spread over the files that execute its line
TIMEOUT_S = 240.0  # an endless loop counts as found

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
    number: int  # among the places of the module
    change: str


def mutated(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Change one place of the tree after the other: (line, change); undone when asked for more."""
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
            node.op = ast.UAdd()  # of a truth value: the value itself
            yield node.lineno, "not removed"
            node.op = operator
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = node.value
            node.value = not value if isinstance(value, bool) else value * 2 if value else 1
            yield node.lineno, f"{value} -> {node.value}"
            node.value = value


def _name(operator: ast.AST) -> str:
    return type(operator).__name__


def covering_tests(checkout: Path, folder: Path) -> dict[str, dict[int, list[str]]]:
    """By module and line: the test functions that execute it, as pytest names them."""
    settings = folder / "coveragerc"
    settings.write_text(
        f"[run]\nsource = watchdog_app.core\ndata_file = {folder}/data\n"
        "dynamic_context = test_function\n"
    )
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run(
        [*coverage, "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "no:xdist", *TESTS],
        cwd=checkout,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    report = folder / "report.json"
    subprocess.run(
        [*coverage, "json", f"--rcfile={settings}", "--show-contexts", "-q", "-o", str(report)],
        cwd=checkout,
        check=True,
    )
    files = json.loads(report.read_text())["files"]
    return {
        path: {
            int(line): [ident for name in names if (ident := _ident(checkout, name))]
            for line, names in found["contexts"].items()
        }
        for path, found in files.items()
    }


def _ident(checkout: Path, context: str) -> str | None:
    """`tests.core.test_x.test_y` as `tests/core/test_x.py::test_y`."""
    module, _, function = context.rpartition(".")
    path = Path(*module.split(".")).with_suffix(".py")
    for folder in ("", *TESTS):
        if (checkout / folder / path).is_file():
            return f"{Path(folder) / path}::{function}"
    return None


def places(packages: list[str], tests: dict[str, dict[int, list[str]]]) -> list[Mutant]:
    """All places that can be changed on lines that a test executes."""
    found = []
    for package in packages:
        for path in sorted((ROOT / CORE / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            covered = tests.get(str(relative), {})
            for number, (line, change) in enumerate(mutated(ast.parse(path.read_text()))):
                if covered.get(line):
                    found.append(Mutant(relative, line, number, change))
    return found


def survives(mutant: Mutant, tests: list[str], checkout: Path) -> bool:
    """Whether all tests pass with the change."""
    target = checkout / mutant.path
    original = target.read_text()
    tree = ast.parse(original)
    for number, _ in enumerate(mutated(tree)):
        if number == mutant.number:
            target.write_text(ast.unparse(tree))
            break
    chosen = random.Random(mutant.number).sample(tests, min(len(tests), MOST_TESTS))
    try:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", *sorted(chosen)],
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
    """Make the mutants and print which survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packages", nargs="+", default=["policy", "forecast", "diagnosis"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkouts: Queue[Path] = Queue()
        for job in range(args.jobs):
            checkout = folder / str(job)
            for part in ("watchdog_app", "tests", "pyproject.toml"):
                source = ROOT / part
                copy = shutil.copytree if source.is_dir() else shutil.copy
                checkout.mkdir(exist_ok=True)
                copy(source, checkout / part)
            checkouts.put(checkout)
        tests = covering_tests(folder / "0", folder)
        every = places(args.packages, tests)
        chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
        print(f"{len(every)} places on executed lines; {len(chosen)} mutants", flush=True)

        def run(mutant: Mutant) -> tuple[Mutant, bool]:
            checkout = checkouts.get()
            try:
                return mutant, survives(mutant, tests[str(mutant.path)][mutant.line], checkout)
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
