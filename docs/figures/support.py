"""Arguments and output shared by the figure scripts."""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "images"


def arguments(description: str | None) -> argparse.Namespace:
    """Parse ``--quick`` for a rough figure in seconds, ``--out`` for another folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller samples, for a test")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the images")
    return parser.parse_args()


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PNG, without date and version, so that the file is reproducible."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=100, metadata={"Software": None})
