"""The tables of docs/protocol.md: from the records of requests and the comments in them."""

from __future__ import annotations

import ast
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = "watchdog_app/client/requests.py"
BEGIN = "<!-- printed from client/requests.py by packaging/refresh.py: {} -->\n"
END = "<!-- end -->"

_TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "boolean"}


def methods() -> dict[str, ast.ClassDef]:
    """The record of each method, in the order of the source."""
    return {
        str(each.value.value): node
        for node in _tree().body
        if isinstance(node, ast.ClassDef)
        for each in node.keywords
        if each.arg == "method" and isinstance(each.value, ast.Constant)
    }


def table(agents: bool) -> str:
    """
    A row for each method.

    Args:
        agents: those that agents send; else those of other clients.
    """
    head = "what" if agents else "result"
    lines = [f"| method | parameters | {head} |", "|---|---|---|"]
    for name, node in methods().items():
        if name.startswith("agent.") is agents:
            said = " ".join((ast.get_docstring(node) or "").split())
            lines.append(f"| `{name}` | {', '.join(_parameters(node))} | {_cell(said)} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """
    The page with its tables as the records are now.

    Args:
        text: of docs/protocol.md.
    """
    for name, agents in (("clients", False), ("agents", True)):
        begin = BEGIN.format(name)
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{table(agents)}\n\n{END}{rest.partition(END)[2]}"
    return text


def _parameters(node: ast.ClassDef) -> list[str]:
    lines = _source().splitlines()
    return [
        f"`{ast.unparse(each.target)}` ({_type(ast.unparse(each.annotation))}"
        f"{_meaning(lines, each)})"
        for each in node.body
        if isinstance(each, ast.AnnAssign)
    ]


def _type(annotation: str) -> str:
    inner = annotation.removesuffix(" | None")
    null = " or null" if inner != annotation else ""
    listed = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", inner)
    name = listed[1] if listed else inner
    return f"{'list of ' if listed else ''}{_TYPES.get(name, name)}{null}"


def _meaning(lines: list[str], node: ast.AnnAssign) -> str:
    """What the comment behind or above a field says."""
    _, sign, behind = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
    if sign:
        return f"; {_cell(behind)}"
    above = lines[node.lineno - 2].strip()
    return f"; {_cell(above[2:].rstrip('.'))}" if above.startswith("# ") else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _tree() -> ast.Module:
    return ast.parse(_source())


def _source() -> str:
    with open(os.path.join(ROOT, SOURCE), encoding="utf-8") as file:
        return file.read()
