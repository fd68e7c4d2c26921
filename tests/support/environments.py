"""Small virtual environments."""

import subprocess
import sys


def make_venv(path):
    """Make a virtual environment with one package, ``only_here``, and no pip; return its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True, timeout=60)
    (site,) = path.glob("lib/python3*/site-packages")
    (site / "only_here.py").write_text("VALUE = 42\n")
    about = site / "only_here-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: only-here\nVersion: 1.0\n")
    (about / "RECORD").write_text("only_here.py,,\n")
    return path
