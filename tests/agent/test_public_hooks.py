"""The agent uses only public hooks inside users' programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import watchdog_app.agent

AGENT = Path(watchdog_app.agent.__file__).parent
# Modules that trace a program, read its bytecode, or read objects in memory.
REFUSED_CALLS = {"settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads"}
REFUSED_CALLS |= {"from_address", "string_at", "get_referrers", "get_referents"}
REFUSED_MODULES = {"dis", "opcode", "bdb"}
# `watchdog leaks` searches for growth on request.
ALLOWED = {("telemetry/diagnose.py", "get_objects")}


def uses(path: Path) -> Iterator[str]:
    """Return the forbidden modules and attributes that the code uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from REFUSED_MODULES & {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from REFUSED_MODULES & {node.module or ""}
            yield from REFUSED_CALLS & {each.name for each in node.names}
        elif isinstance(node, ast.Attribute) and node.attr in {*REFUSED_CALLS, "get_objects"}:
            yield node.attr


def test_the_agent_neither_traces_nor_reads_bytecode_nor_walks_through_memory() -> None:
    """
    Debuggers and coverage tools need tracing for themselves, and memory offsets differ between
    versions.
    """
    found = {
        (path.relative_to(AGENT).as_posix(), name)
        for path in AGENT.rglob("*.py")
        for name in uses(path)
    }

    assert ALLOWED == found


def test_what_is_refused_would_be_found(tmp_path: Path) -> None:
    """The test tries each way to write them."""
    program = tmp_path / "program.py"
    program.write_text(
        "import dis, sys, gc, ctypes\nfrom sys import settrace\n"
        "sys.setprofile(None)\ngc.get_objects()\nctypes.string_at(1)\n"
    )

    assert {"dis", "settrace", "setprofile", "get_objects", "string_at"} == set(uses(program))
