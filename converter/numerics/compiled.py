"""Sums of two float32 arrays in one compiled pass, where the installation could build it (``_sums.c``).

NumPy makes a pass for every sum and every maximum, and holds Python's lock between them; this makes one, without the
lock, four times as fast.  Without a compiler at installation ``error_sums`` says None and NumPy does the work.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from converter.formats import FloatFormat


class Sums(ctypes.Structure):
    """What one pass finds; the fields are those of ``sums`` in ``_sums.c``."""

    _fields_ = (
        ("a_sq", ctypes.c_double),
        ("b_sq", ctypes.c_double),
        ("d_sq", ctypes.c_double),
        ("absmax", ctypes.c_double),
        ("largest", ctypes.c_double),
        ("largest_value", ctypes.c_double),
        ("flushed", ctypes.c_longlong),
        ("saturated", ctypes.c_longlong),
    )


def error_sums(a: NDArray[np.float32], b: NDArray[np.float32], fmt: FloatFormat | None) -> Sums | None:
    """Squares, largest magnitudes, and flushed and saturated elements of flat contiguous arrays of one size.

    NaN and infinities make a sum non-finite.  None when there is no compiled pass, or when it cannot take the arrays.
    """
    if _KERNEL is None or not (a.flags.c_contiguous and b.flags.c_contiguous and a.flags.aligned and b.flags.aligned):
        return None
    found = Sums()
    limit = fmt.max_finite if fmt is not None else math.nan
    _KERNEL(a.ctypes.data, b.ctypes.data, a.size, limit, ctypes.byref(found))
    return found


def load() -> Any:
    """The compiled function; None where none was built, or where this machine cannot load it."""
    for path in sorted(Path(__file__).parent.glob("_sums*.so")) + sorted(Path(__file__).parent.glob("_sums*.pyd")):
        try:
            kernel = ctypes.CDLL(str(path)).narrowcast_error_sums
        except (OSError, AttributeError):
            continue
        kernel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p)
        kernel.restype = None
        return kernel
    return None


_KERNEL: Final = load()
