"""The schema of the status and its tables in docs/status-json.md, from the records."""

from __future__ import annotations

import ast
import json
import os
import re
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = "watchdog_app/core/model/status.py"
BEGIN = "<!-- printed from the records by packaging/refresh.py: begin -->\n"
END = "<!-- end -->"

SCHEMA_VERSION = 2
_JSON_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}
_NEVER_NEGATIVE = ("_bytes", "_percent", "_unix_s", "rpm")  # endings of keys
_ALWAYS_KNOWN = ("time", "time_unix_s")  # of the command's output, also without a daemon
_TYPES = {"float": "number", "int": "integer", "str": "text", "bool": "boolean"}
_UNITS = (  # ending of the key, unit; the first that fits
    ("_bytes_per_s", "bytes/s"),
    ("_per_s", "per s"),
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


def schema() -> str:
    """docs/status.schema.json: the JSON Schema of the whole status."""
    known = fields()
    definitions = {name: _object(rows, known) for name, rows in known.items()}
    whole = definitions.pop("Status")
    whole["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    for unused in ("Notification", "Button"):
        del definitions[unused]
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "watchdog status --json",
        "description": "One reading. Units are in the keys; null means unknown. Later versions may "
        "add fields and words: ignore what you do not know. What is here keeps its meaning as long "
        f"as schema_version is {SCHEMA_VERSION}.",
        **whole,
        "$defs": definitions,
    }
    return json.dumps(found, indent=2) + "\n"


def _object(rows: list[tuple[str, str, str]], known: dict[str, Any]) -> dict[str, Any]:
    properties = {
        key: {**_schema_of(key, form, known), "description": meaning} for key, form, meaning in rows
    }
    return {"type": "object", "required": [key for key, _, _ in rows], "properties": properties}


def _schema_of(key: str, annotation: str, known: dict[str, Any]) -> dict[str, Any]:
    inner = annotation.removesuffix(" | None")
    if listed := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", inner):
        kind = "array" if inner == annotation else ["array", "null"]
        return {"type": kind, "items": _schema_of("", listed[1], known)}
    if inner == "Level":
        return {"enum": ["ok", "watch", "warning", "critical", "unknown"]}
    found: dict[str, Any] = {"type": _JSON_TYPES.get(inner, "object")}
    if inner in known:
        found = {"$ref": f"#/$defs/{inner}"}
    elif key == "pid":
        found["minimum"] = 1
    elif key.endswith(_NEVER_NEGATIVE) and not key.startswith("slope"):
        found["minimum"] = 0
    if inner == annotation or key in _ALWAYS_KNOWN:
        return found
    if "$ref" in found:
        return {"oneOf": [found, {"type": "null"}]}
    return {**found, "type": [found["type"], "null"]}


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
