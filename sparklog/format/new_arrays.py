"""Allocate numpy arrays from Arrow's memory pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def new_array(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialized array from Arrow's memory pool.

    The pool reuses large blocks. Requesting new pages from the operating system takes more time than filling them.
    """
    kind = np.dtype(dtype)
    if length == 0:
        return np.empty(0, kind)
    # Import pyarrow lazily, because planners import this module without allocating arrays.
    import pyarrow as pa

    return np.frombuffer(pa.allocate_buffer(length * kind.itemsize), kind)
