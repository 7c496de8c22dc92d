"""Numeric options of the commands."""

from __future__ import annotations

import argparse

from lightning_audit._validate import shown

# Largest 64-bit integer; a larger number is a mistake.
_LARGEST = 2**63 - 1


def add_max_values(command: argparse.ArgumentParser) -> None:
    """Add the option that limits how much is read from a file."""
    from lightning_audit.files.npz import MAX_VALUES  # loads numpy, which a gate does not need

    command.add_argument(
        "--max-values",
        type=positive_int,
        default=MAX_VALUES,
        metavar="N",
        help="read at most N numbers from the file; 10^8 take about 3 GB and half a minute "
        "(default: 10^8)",
    )


def positive(text: str) -> float:
    """Parse a number > 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number > 0")
    return value


def non_negative(text: str) -> float:
    """Parse a number >= 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number >= 0")
    return value


def whole(text: str) -> int:
    """Parse a whole number of either sign that fits into 64 bits."""
    try:
        value = int(text)
    except ValueError:
        value = _LARGEST + 1
    if abs(value) > _LARGEST:
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a whole number, below 2^63")
    return value


def positive_int(text: str) -> int:
    """Parse a whole number >= 1 that fits into 64 bits."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number >= 1")
    return value
