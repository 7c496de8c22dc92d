"""Executes examples/tour.ipynb, and writes the outputs of its cells into it: no arguments."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "examples" / "tour.ipynb"


def executed(folder: Path) -> NotebookNode:
    """Return the notebook after its cells ran in a folder, with a kernel of this environment."""
    notebook = nbformat.read(TOUR, as_version=4)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client = NotebookClient(
        notebook,
        timeout=300,
        startup_timeout=180,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)})
    return notebook


def committed(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook without the page, which GitHub does not show, and without times."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                del data["text/plain"]
            if "<iframe" in data.get("text/html", ""):
                cell.outputs = []
    return notebook


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(committed(executed(Path(folder))), TOUR)
    return 0


if __name__ == "__main__":
    sys.exit(main())
