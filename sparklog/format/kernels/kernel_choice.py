"""Choose whether kernels are interpreted or compiled.

Both modes run the same source, so they produce the same bytes and the same errors. An **interpreted** kernel is plain
Python and takes about five microseconds per record. A **compiled** kernel (`native_kernels`) processes about a gigabyte
per second, but loading numba and the compiled code takes at least a third of a second of CPU time per process.

A process interprets kernels until the next call would exceed a total of `LOADING_IS_WORTH` records. Then it loads the
compiled kernels, and uses only these. Therefore a process spends at most about twice the time of the better mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparklog.format.kernels.kernel_memory import Kind, Signature

LOADING_IS_WORTH = 50_000
"""The number of records whose interpretation takes about as much CPU time as loading numba
(docs/design/performance.md).
"""


class Choice:
    """The mode in which the kernels of a process run. Kernels are interpreted for another `left` records, and then
    compiled.

    * `loaded`: the number of compiled kernels that were loaded
    * `is_preloading`: True while a thread loads kernels that other threads continue to interpret
    """

    def __init__(self, left: int = LOADING_IS_WORTH) -> None:
        self.left = left
        self.loaded = 0
        self.is_preloading = False

    def compiled(self, records: int) -> bool:
        """Count a call that processes `records` records. Return True if the call should run compiled code."""
        self.left = self.left - records if records <= self.left else -1
        return self.left < 0 and not self.is_preloading

    def load(self) -> None:
        """Run compiled code in all future calls of kernels."""
        self.left = -1


choice = Choice()
"""The mode of this process."""


class Kernel:
    """A kernel. A direct call runs compiled code. `sized` chooses the mode based on the number of records."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function = function
        self.signature = signature
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return self.load()(*arguments)

    def sized(self, records: int) -> Callable[..., Any]:
        return self.load() if choice.compiled(records) else self.interpreted

    def load(self) -> Callable[..., Any]:
        """Return the compiled kernel. The first call loads the kernel from the cache or compiles it."""
        if self._compiled is None:
            from sparklog.format.kernels.native_kernels import compiled

            choice.load()
            choice.loaded += 1
            self._compiled = compiled(self.function, self.signature)
        return self._compiled

    def interpreted(self, *arguments: Any) -> Any:
        pairs = zip(self.signature.parameters, arguments, strict=True)
        return self.function(*[_plain(kind, argument) for kind, argument in pairs])


def _plain(kind: Kind, argument: Any) -> Any:
    """Convert an argument to a Python integer, or to a memoryview, whose elements are Python integers."""
    if not kind.dimensions:
        return int(argument)
    fits = argument.dtype == kind.dtype and argument.ndim == kind.dimensions and argument.flags.c_contiguous
    if not fits or (kind.writable and not argument.flags.writeable):
        raise TypeError(f"a kernel expected {kind}, found {argument.dtype}[{argument.ndim}] with {argument.flags}")
    return memoryview(argument)


def preload(*kernels: Kernel) -> None:
    """Load compiled kernels. While the kernels are being loaded, other threads interpret all kernels, so that they do
    not have to wait.
    """
    choice.is_preloading = True
    try:
        for each in kernels:
            each.load()
    finally:
        choice.is_preloading = False


def kernel(signature: Signature) -> Callable[[Callable[..., Any]], Kernel]:
    return lambda function: Kernel(function, signature)
