"""Fetch the library that draws the diagrams of the documentation site, Mermaid, by npm, into ``build/npm``."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "12.3.0"
SHA256 = "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3"  # of the library's file
LIBRARY = Path(__file__).parents[1] / "build" / "npm" / "mermaid.min.js"


def main() -> None:
    """Leave the library where the site's configuration expects it; do nothing if it is there."""
    if LIBRARY.exists() and _digest(LIBRARY.read_bytes()) == SHA256:
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("make docs needs npm once, to fetch Mermaid, which draws the diagrams (Debian: apt install npm)")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--json", f"mermaid@{VERSION}", "--pack-destination", folder]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"npm can't fetch mermaid@{VERSION}, which draws the diagrams of the site:\n{done.stderr.strip()}")
        with tarfile.open(Path(folder) / json.loads(done.stdout)[0]["filename"]) as archive:
            data = archive.extractfile("package/dist/mermaid.min.js").read()
    if _digest(data) != SHA256:
        sys.exit(f"mermaid@{VERSION} as npm has fetched it has the SHA-256 {_digest(data)}, and {SHA256} is expected")
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    LIBRARY.write_bytes(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
