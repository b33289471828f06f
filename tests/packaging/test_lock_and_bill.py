"""The pinned development packages, and the bill of materials of a release."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "packaging" / "requirements-dev.txt").read_text()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_of_development_is_pinned_with_hashes():
    """Each package of pyproject.toml has one version and at least one SHA-256."""
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        normal(re.split(r"[^A-Za-z0-9._-]", text)[0])
        for text in (*project["dependencies"], *extras["tensorflow"], *extras["dev"])
    }

    assert set() == wanted - {normal(name) for name in pinned}
    for block in re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block, block[:80]


def test_the_lock_names_no_place_that_only_one_machine_has():
    """The user who installs it chooses the source: it has no index, path or link."""
    assert not re.search(r"^\s*(--(?!hash)|-[a-z])|file:|@ |https?:", LOCK, re.MULTILINE)


def test_a_bill_of_materials_names_everything_that_is_installed(tmp_path):
    """
    The CycloneDX JSON lists each dependency with version, purl and dependents, and is reproducible.
    """
    script = str(ROOT / "packaging" / "sbom.py")
    for name in ("a.json", "b.json"):
        subprocess.run([sys.executable, script, str(tmp_path / name)], check=True, cwd=tmp_path)
    text = (tmp_path / "a.json").read_text()
    bill = json.loads(text)

    assert ("CycloneDX", "1.5") == (bill["bomFormat"], bill["specVersion"])
    assert text == (tmp_path / "b.json").read_text()
    assert "watchdog-app" == bill["metadata"]["component"]["name"]
    names = {each["name"] for each in bill["components"]}
    assert {"psutil", "nvidia-ml-py", "pystray", "pillow", "plyer", "textual", "rich"} <= names
    assert set() == names & {"tensorflow", "torch", "pytest"}
    refs = {each["bom-ref"] for each in bill["components"]}
    assert all(each["purl"] == f"pkg:pypi/{each['bom-ref']}" for each in bill["components"])
    needed = {ref for each in bill["dependencies"] for ref in each["dependsOn"]}
    assert refs == needed
