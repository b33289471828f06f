"""The tables of docs/status-json.md about version 2: from the records and the comments in them."""

from __future__ import annotations

import ast
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = "watchdog_app/core/model/status.py"
BEGIN = "<!-- printed from the records by packaging/refresh.py: begin -->\n"
END = "<!-- end -->"

_TYPES = {"float": "number", "int": "integer", "str": "text", "bool": "boolean"}
_UNITS = (  # ending of the key, unit; the first that fits
    ("_bytes_per_s", "bytes/s"),
    ("_unix_s", "s since 1970"),
    ("_bytes", "bytes"),
    ("_percent", "%"),
    ("_s", "s"),
    ("_c", "°C"),
    ("celsius", "°C"),
    ("percent", "%"),
    ("rpm", "rpm"),
    ("_w", "W"),
    ("_j", "J"),
    ("bytes", "bytes"),
    ("seconds", "s"),
)


def fields() -> dict[str, list[tuple[str, str, str]]]:
    """By record: key, annotation and meaning of each field, in the order of the source."""
    text = _source()
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and [ast.unparse(each) for each in node.bases] == [
            "Record"
        ]:
            found[node.name] = [
                (ast.unparse(each.target), ast.unparse(each.annotation), _meaning(lines, each))
                for each in node.body
                if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each)
            ]
    return found


def tables() -> str:
    """A section for each record, the whole status first."""
    known = fields()
    docs = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(_source()).body
        if isinstance(node, ast.ClassDef)
    }
    lines = []
    for name in ("Status", *(each for each in known if each != "Status")):
        lines += [f"### {name}", "", docs[name].partition("\n")[0], ""]
        lines += ["| field | type | unit | meaning |", "|---|---|---|---|"]
        for key, annotation, meaning in known[name]:
            lines.append(
                f"| `{key}` | {_type(annotation, known)} | {_unit(key)} | {meaning} |".replace(
                    "|  |", "| |"
                )
            )
        lines.append("")
    return "\n".join(lines)


def page(text: str) -> str:
    """
    The page with its tables as the records are now.

    Args:
        text: of docs/status-json.md.
    """
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def _source() -> str:
    with open(os.path.join(ROOT, SOURCE), encoding="utf-8") as file:
        return file.read()


def _meaning(lines: list[str], node: ast.AnnAssign) -> str:
    number = node.lineno - 1
    _, sign, behind = lines[number].partition("  # ")
    above: list[str] = []
    number -= 1
    while lines[number].strip().startswith("# "):
        above.insert(0, lines[number].strip()[2:])
        number -= 1
    return " ".join([*above, behind.strip()] if sign else above).strip()


def _type(annotation: str, known: dict[str, list[tuple[str, str, str]]]) -> str:
    inner = annotation.removesuffix(" | None")
    null = " or null" if inner != annotation else ""
    listed = re.fullmatch(r"tuple\[(\w+), \.\.\.\]", inner)
    name = listed[1] if listed else inner
    shown = f"[{name}](#{name.lower()})" if name in known else _TYPES.get(name, name.lower())
    return f"{'list of ' if listed else ''}{shown}{null}"


def _unit(key: str) -> str:
    return next((unit for ending, unit in _UNITS if key.endswith(ending)), "")
