"""Writing ``.npz`` files whose keys may be any text; ``numpy.savez`` takes no key called ``file``."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name, uncompressed; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
