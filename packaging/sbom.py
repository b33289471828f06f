"""
The bill of materials of a release, as CycloneDX 1.5 JSON: what an installation by pip brings.

    .venv/bin/python packaging/sbom.py dist/watchdog-app.cdx.json

Walks what is installed here, from watchdog-app's own dependencies down, without extras. Licences
and places are as the packages tell them; versions are those of this environment. The same
environment gives the same bytes: no time, no random number is in it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from importlib import metadata
from typing import Any

NAME = "watchdog-app"


def components() -> dict[str, metadata.Distribution]:
    """Every package by its normal name, watchdog-app first."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    waiting = [(NAME, frozenset[str]())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop(0)
        if (_normal(name), extras) in seen:
            continue
        seen.add((_normal(name), extras))
        try:
            one = found.setdefault(_normal(name), metadata.distribution(name))
        except metadata.PackageNotFoundError:
            raise SystemExit(f"sbom: {name} is not installed here; run: make setup") from None
        for text in one.requires or ():
            wanted = Requirement(text)
            marked = wanted.marker
            if marked is None or any(marked.evaluate({"extra": e}) for e in (*extras, "")):
                waiting.append((wanted.name, frozenset(wanted.extras)))
    return found


def bill() -> dict[str, Any]:
    """The whole document."""
    found = components()
    own = found.pop(NAME)
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**_component(own), "type": "application"}},
        "components": [_component(found[name]) for name in sorted(found)],
        "dependencies": [_needs(one, found) for one in (own, *map(found.get, sorted(found)))],
    }
    seed = json.dumps(body, sort_keys=True)
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", **body,
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}"}  # fmt: skip


def _component(one: metadata.Distribution) -> dict[str, Any]:
    about = one.metadata
    name, version = _normal(about["Name"]), one.version
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    licence = about.get("License-Expression")
    told = about.get("License") or ""
    named = [
        c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c[:9] == "License :"
    ]
    if licence:
        found["licenses"] = [{"expression": licence}]
    elif named or (told and len(told) < 80):
        found["licenses"] = [{"license": {"name": text}} for text in named or [told]]
    home = about.get("Home-page") or next(
        (url.partition(", ")[2] for url in about.get_all("Project-URL") or ()), None
    )
    if home:
        found["externalReferences"] = [{"type": "website", "url": home}]
    return found


def _needs(one: Any, found: dict[str, metadata.Distribution]) -> dict[str, Any]:
    names = {_normal(re.split(r"[^A-Za-z0-9._-]", text)[0]) for text in one.requires or ()}
    refs = [f"{name}@{found[name].version}" for name in sorted(names & found.keys())]
    return {"ref": f"{_normal(one.metadata['Name'])}@{one.version}", "dependsOn": refs}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Write it to the path that was named, or to standard output."""
    # This folder is called packaging, as the library is.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != here]
    text = json.dumps(bill(), indent=2) + "\n"
    if len(sys.argv) > 1:
        os.makedirs(os.path.dirname(os.path.abspath(sys.argv[1])), exist_ok=True)
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
