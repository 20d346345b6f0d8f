"""Arrays of numpy in memory of Arrow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def new_array(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised array from Arrow's memory pool, which keeps big blocks for the next one: fresh pages from the
    system cost more than filling them.
    """
    kind = np.dtype(dtype)
    if length == 0:
        return np.empty(0, kind)
    # Planners import this module and read nothing.
    import pyarrow as pa

    return np.frombuffer(pa.allocate_buffer(length * kind.itemsize), kind)
