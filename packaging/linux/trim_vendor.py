"""
Leave of what pip fetched what a Debian package may carry: pure Python, with its licences told.

    python3 trim_vendor.py FOLDER DEBIAN_COPYRIGHT

What Debian has itself is dropped (DEBIAN below; the package depends on it). Metadata is dropped:
it would be read as more dependencies. Licences go to debian/copyright.
"""

from __future__ import annotations

import email.parser
import shutil
import sys
from pathlib import Path

# Distribution -> what lies in the folder for it.
DEBIAN = {"pygments": "pygments", "typing_extensions": "typing_extensions.py"}


def main(folder: Path, copyright_file: Path) -> int:
    """Trim in place; 1 where something is not pure Python."""
    stanzas = []
    for info in sorted(folder.glob("*.dist-info")):
        metadata = email.parser.Parser().parsestr((info / "METADATA").read_text("utf-8"))
        name = str(metadata["Name"]).lower().replace("-", "_")
        top = DEBIAN.get(name)
        if top is not None:
            path = folder / top
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            stanzas.append(_stanza(metadata, info, _tops(info)))
        shutil.rmtree(info)
    (folder / "example.py").unlink(missing_ok=True)  # of nvidia-ml-py
    for junk in (folder / "bin", *folder.rglob("__pycache__")):
        shutil.rmtree(junk, ignore_errors=True)
    binary = next(folder.rglob("*.so"), None)
    if binary is not None:
        print(f"{binary} is not pure Python; the package is for all machines", file=sys.stderr)
        return 1
    with copyright_file.open("a", encoding="utf-8") as file:
        file.writelines(stanzas)
    return 0


def _tops(info: Path) -> list[str]:
    """Files and folders of a distribution, below the folder that it lies in."""
    lines = (info / "RECORD").read_text("utf-8").splitlines()
    tops = {line.split(",")[0].split("/")[0] for line in lines}
    return sorted(top for top in tops if not top.endswith(".dist-info") and top != "..")


def _stanza(metadata: email.message.Message, info: Path, tops: list[str]) -> str:
    text = "\n".join(
        path.read_text("utf-8", "replace").strip()
        for path in sorted(info.rglob("*"))
        if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING"))
    )
    name = metadata["Name"]
    licence = f"{name}-licence"
    body = "".join(f" {line.rstrip()}\n" if line.strip() else " .\n" for line in text.splitlines())
    files = "".join(f" vendor/{top}*\n" for top in tops)
    author = metadata["Author"] or metadata["Author-email"] or f"the authors of {name}"
    if not body:
        body = f" As its own metadata says: {metadata['License']}\n"
    return f"\nFiles:\n{files}Copyright: {author}\nLicense: {licence}\n\nLicense: {licence}\n{body}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
