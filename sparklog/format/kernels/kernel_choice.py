"""Choose whether kernels are interpreted or compiled.

Both modes run the same source, so they produce the same bytes and the same errors. An **interpreted** kernel is plain
Python and takes about five microseconds per record. A **compiled** kernel (`machine_code`) processes about a gigabyte
per second, but loading the first kernel takes 50 ms of CPU time per process, or several seconds if the kernel is not in
the cache and has to be compiled.

A process interprets kernels until the next call would exceed a total of `LOADING_IS_WORTH` records, or of
`COMPILING_IS_WORTH` records if the kernel is not in the cache. Then it loads the compiled kernels, and uses only these.
Therefore a process spends at most about twice the time of the better mode if the kernels are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparklog.format.kernels.kernel_memory import Signature

LOADING_IS_WORTH = 10_000
"""The number of records whose interpretation takes about as much CPU time as loading kernels from the cache
(docs/design/performance.md).
"""

COMPILING_IS_WORTH = 50_000
"""The number of records after which a process compiles a kernel that is not in the cache."""


class Choice:
    """The mode in which the kernels of a process run. Kernels are interpreted for another `left` records, and then
    compiled.

    * `left_to_compile`: the number of records by which `left` is increased once if a kernel is not in the cache
    * `loaded`: the number of compiled kernels that were loaded
    * `is_preloading`: True while a thread loads kernels that other threads continue to interpret
    """

    def __init__(self, left: int, left_to_compile: int = 0) -> None:
        self.left = left
        self.left_to_compile = left_to_compile
        self.loaded = 0
        self.is_preloading = False

    def compiled(self, records: int, is_cached: Callable[[], bool] | None = None) -> bool:
        """Count a call that processes `records` records. Return True if the call should run compiled code.

        `is_cached` returns True if loading the kernel does not require compiling it.
        """
        self.left = self.left - records if records <= self.left else -1
        if self.left < 0 and self.left_to_compile > records and is_cached is not None and not is_cached():
            self.left, self.left_to_compile = self.left_to_compile - records, 0
        return self.left < 0 and not self.is_preloading

    def load(self) -> None:
        """Run compiled code in all future calls of kernels."""
        self.left, self.left_to_compile = -1, 0


choice = Choice(LOADING_IS_WORTH, COMPILING_IS_WORTH - LOADING_IS_WORTH)
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
        return self.load() if choice.compiled(records, self.is_cached) else self.interpreted

    def is_cached(self) -> bool:
        """Return True if the kernel can be loaded without compiling it."""
        from sparklog.format.kernels.machine_code import is_cached

        return is_cached(self.function)

    def load(self) -> Callable[..., Any]:
        """Return the compiled kernel. The first call loads the kernel from the cache or compiles it."""
        if self._compiled is None:
            from sparklog.format.kernels.machine_code import compiled

            choice.load()
            choice.loaded += 1
            self._compiled = compiled(self.function, self.signature)
        return self._compiled

    def interpreted(self, *arguments: Any) -> Any:
        pairs = zip(self.signature.parameters, arguments, strict=True)
        checked = [(kind.dimensions, kind.check(argument)) for kind, argument in pairs]
        # The elements of a memoryview are Python integers.
        return self.function(*[memoryview(value) if dimensions else value for dimensions, value in checked])


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
