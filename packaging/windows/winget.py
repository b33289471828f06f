"""
Write the three files of a winget manifest for an installer made by watchdog.iss.

    python packaging/windows/winget.py INSTALLER URL [FOLDER]

INSTALLER: watchdog-VERSION-setup.exe, for its checksum. URL: where that very file can be fetched.
FOLDER: default dist/winget. Then, on Windows: winget validate FOLDER
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

IDENTIFIER = "WatchdogApp.Watchdog"
SCHEMA = "1.6.0"
DESCRIPTION = (
    "Watches the memory of every Python and Jupyter process, sees exhaustion coming, warns, and "
    "asks the training to save a checkpoint before it is lost."
)
ROOT = Path(__file__).parents[2]


def version() -> str:
    """The version that the package has."""
    text = (ROOT / "watchdog_app/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise SystemExit("watchdog_app/__init__.py names no version")
    return found[1]


def manifests(sha256: str, url: str) -> dict[str, str]:
    """File name: its text."""
    head = {"PackageIdentifier": IDENTIFIER, "PackageVersion": version()}
    return {
        f"{IDENTIFIER}.yaml": _yaml("version", {**head, "DefaultLocale": "en-US"}),
        f"{IDENTIFIER}.locale.en-US.yaml": _yaml(
            "defaultLocale",
            {
                **head,
                "PackageLocale": "en-US",
                "Publisher": "The watchdog authors",
                "PackageName": "Watchdog",
                "Moniker": "watchdog-app",
                "License": "MIT",
                "ShortDescription": "Sees a training run out of memory coming and saves its work",
                "Description": DESCRIPTION,
                "Tags": ["jupyter", "keras", "memory", "monitoring", "oom", "tensorflow"],
            },
        ),
        f"{IDENTIFIER}.installer.yaml": _yaml(
            "installer",
            {
                **head,
                "InstallerType": "inno",
                "Scope": "user",
                "MinimumOSVersion": "10.0.17763.0",
                "UpgradeBehavior": "install",
                "Installers": [
                    {"Architecture": "x64", "InstallerUrl": url, "InstallerSha256": sha256.upper()}
                ],
            },
        ),
    }


def _yaml(kind: str, values: dict[str, object]) -> str:
    lines = []
    for key, value in {**values, "ManifestType": kind, "ManifestVersion": SCHEMA}.items():
        if isinstance(value, list):
            lines.append(f"{key}:")
            for each in value:
                lines += _item(each)
        else:
            lines.append(f"{key}: {_quoted(value)}")
    return "\n".join(lines) + "\n"


def _item(value: object) -> list[str]:
    if not isinstance(value, dict):
        return [f"- {_quoted(value)}"]
    pairs = [f"  {key}: {_quoted(inner)}" for key, inner in value.items()]
    return ["-" + pairs[0][1:], *pairs[1:]]


def _quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def main(words: list[str]) -> int:
    """Write them; 2 for words that make no sense."""
    if len(words) not in (2, 3) or not words[1].startswith("https://"):
        print(str(__doc__).strip(), file=sys.stderr)
        return 2
    installer, url = Path(words[0]), words[1]
    folder = Path(words[2]) if len(words) == 3 else ROOT / "dist/winget"
    folder.mkdir(parents=True, exist_ok=True)
    sha256 = hashlib.sha256(installer.read_bytes()).hexdigest()
    for name, text in manifests(sha256, url).items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
