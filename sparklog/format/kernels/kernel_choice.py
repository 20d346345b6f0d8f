"""Choose whether kernels are interpreted or compiled.

Both modes run the same source, so they produce the same bytes and the same errors. An **interpreted** kernel is plain
Python and takes about five microseconds per record. A **compiled** kernel (`machine_code`) processes about a gigabyte
per second, but loading the first kernel takes 50 ms of CPU time per process, or several seconds if the kernel is not in
the cache and has to be compiled.

A process interprets kernels until the next call would exceed a total of `LOADING_IS_WORTH` records. Then it loads the
compiled kernels. Kernels that are not in the cache are interpreted for another `COMPILING_IS_WORTH` records. Therefore
a process spends at most about twice the time of the better mode if the kernels are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparklog.format.kernels.kernel_memory import Signature

LOADING_IS_WORTH = 10_000
"""The number of records whose interpretation takes about as much CPU time as loading kernels from the cache
(docs/design/performance.md).
"""

COMPILING_IS_WORTH = 40_000
"""The number of further records after which a process compiles a kernel that is not in the cache."""


class Choice:
    """The mode in which the kernels of a process run. Kernels are interpreted for another `left` records, and then
    compiled.

    * `left_to_compile`: the number of records for which kernels that are not in the cache are interpreted after that
    * `loaded`: the number of compiled kernels that were loaded
    * `is_preloading`: True while a thread loads kernels that other threads continue to interpret
    """

    def __init__(self, left: int, left_to_compile: int = 0) -> None:
        self.left = left
        self.left_to_compile = left_to_compile
        self.loaded = 0
        self.is_preloading = False

    def compiled(self, records: int, is_cached: Callable[[], bool] = lambda: True) -> bool:
        """Count a call that processes `records` records. Return True if the call should run compiled code.

        `is_cached` returns True if loading the kernel does not require compiling it.
        """
        self.left = _after(self.left, records)
        if self.left >= 0 or self.is_preloading:
            return False
        if is_cached():
            return True
        self.left_to_compile = _after(self.left_to_compile, records)
        return self.left_to_compile < 0

    def load(self) -> None:
        """Run compiled code in all future calls of kernels that are in the cache."""
        self.left = -1


def _after(left: int, records: int) -> int:
    return left - records if records <= left else -1


choice = Choice(LOADING_IS_WORTH, COMPILING_IS_WORTH)
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
        if self._compiled is not None:
            return True
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
