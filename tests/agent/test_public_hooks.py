"""The agent looks into other people's programs by public hooks alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import watchdog_app.agent

AGENT = Path(watchdog_app.agent.__file__).parent
# What traces a program, reads its bytecode, or reads objects where they lie in memory.
REFUSED_CALLS = {"settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads"}
REFUSED_CALLS |= {"from_address", "string_at", "get_referrers", "get_referents"}
REFUSED_MODULES = {"dis", "opcode", "bdb"}
# What grows in a program is looked for on request, see `watchdog leaks`.
ALLOWED = {("telemetry/diagnose.py", "get_objects")}


def uses(path: Path) -> Iterator[str]:
    """Names of refused modules that are imported, and of refused attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from REFUSED_MODULES & {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from REFUSED_MODULES & {node.module or ""}
            yield from REFUSED_CALLS & {each.name for each in node.names}
        elif isinstance(node, ast.Attribute) and node.attr in {*REFUSED_CALLS, "get_objects"}:
            yield node.attr


def test_the_agent_neither_traces_nor_reads_bytecode_nor_walks_through_memory() -> None:
    """A debugger and a coverage tool have that to themselves; offsets differ between versions."""
    found = {
        (path.relative_to(AGENT).as_posix(), name)
        for path in AGENT.rglob("*.py")
        for name in uses(path)
    }

    assert ALLOWED == found


def test_what_is_refused_would_be_found(tmp_path: Path) -> None:
    """Each way to write it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import dis, sys, gc, ctypes\nfrom sys import settrace\n"
        "sys.setprofile(None)\ngc.get_objects()\nctypes.string_at(1)\n"
    )

    assert {"dis", "settrace", "setprofile", "get_objects", "string_at"} == set(uses(program))
