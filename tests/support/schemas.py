"""The JSON schemas of docs/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# jsonschema would build the grammar of a format that no schema uses, which takes three seconds.
sys.modules.setdefault("rfc3987_syntax", None)

from jsonschema import Draft202012Validator  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"


def validator(name: str) -> Draft202012Validator:
    """Return the validator for docs/NAME.schema.json, which is itself a valid schema."""
    schema = json.loads((DOCS / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
