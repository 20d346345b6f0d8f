"""The way a kernel runs: interpreted or compiled.

Its two ways share one source, so both give the same bytes and the same errors. **Interpreted**, as the plain Python
that it is, it costs some five microseconds a record. **Compiled** (`native_kernels`) it works through a gigabyte a
second, but to load numba and the compiled code costs a process a third of a second of CPU and more.

Each process interprets until `LOADING_IS_WORTH` records have gone through its kernels, or would with the next call;
then it loads them and never goes back. So none spends more than about twice what the better way would have cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparklog.format.kernels.kernel_memory import Kind, Signature

LOADING_IS_WORTH = 50_000
"""Records that cost about as much CPU interpreted as loading numba and kernels does (docs/design/performance.md)."""


class Choice:
    """The way the kernels of a process run: interpreted while `left` records are to go, then compiled.

    `loaded`: how many were compiled, or loaded as such, so far.
    """

    def __init__(self, left: int = LOADING_IS_WORTH) -> None:
        self.left = left
        self.loaded = 0

    def compiled(self, records: int) -> bool:
        """Count a call over so many records, and say whether to run it compiled."""
        self.left = self.left - records if records <= self.left else -1
        return self.left < 0

    def load(self) -> None:
        """Run everything compiled from now on."""
        self.left = -1


choice = Choice()
"""The choice of this process."""


class Kernel:
    """One kernel. Called, it runs compiled: for work that is worth it whatever its size."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function = function
        self.signature = signature
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return self.load()(*arguments)

    def sized(self, records: int) -> Callable[..., Any]:
        return self.load() if choice.compiled(records) else self.interpreted

    def load(self) -> Callable[..., Any]:
        """Return the compiled kernel, at the first use from the cache or, without one, compiled."""
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
    """An integer as Python's; an array as a memoryview, whose elements are Python's, too."""
    if not kind.dimensions:
        return int(argument)
    fits = argument.dtype == kind.dtype and argument.ndim == kind.dimensions and argument.flags.c_contiguous
    if not fits or (kind.writable and not argument.flags.writeable):
        raise TypeError(f"a kernel expected {kind}, found {argument.dtype}[{argument.ndim}] with {argument.flags}")
    return memoryview(argument)


def kernel(signature: Signature) -> Callable[[Callable[..., Any]], Kernel]:
    return lambda function: Kernel(function, signature)
