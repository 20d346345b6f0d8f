"""Kernels run one way, whatever the process has loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest import mock

from sparklog.format.kernels import kernel_choice
from sparklog.format.kernels.kernel_choice import Choice

T = TypeVar("T")
UNLIMITED = 1 << 62


@contextmanager
def interpreted() -> Iterator[None]:
    """All kernels that are chosen by size run as plain Python."""
    with mock.patch.object(kernel_choice, "choice", Choice(UNLIMITED)):
        yield


@contextmanager
def compiled() -> Iterator[None]:
    """All kernels run compiled."""
    with mock.patch.object(kernel_choice, "choice", Choice(-1)):
        yield


def both_ways(work: Callable[[], T]) -> tuple[T, T]:
    """What a piece of work gives with interpreted kernels, and what with compiled ones."""
    with interpreted():
        first = work()
    with compiled():
        return first, work()
