"""Reads .npz archives that somebody else may have written."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """All arrays of an archive by their names; pickled objects are not loaded.

    Raises:
        ValueError: the file is absent, or is no archive of arrays.
    """
    try:
        # Opened here, since numpy leaves a file open that is no archive.
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from error
    except TypeError as error:  # of a .npy file numpy gives the array, which is no archive
        raise ValueError("it is a single array") from error
