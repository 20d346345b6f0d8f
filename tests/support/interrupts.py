"""Interrupts by a signal at random points of a call."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from typing import NoReturn

import pytest


def repeat_until_interrupted(call: Callable[[], object]) -> None:
    """Repeat a call until a signal handler raises `KeyboardInterrupt`, like the handler of Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def repeat() -> NoReturn:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.1)
        while True:
            call()

    # pytest-timeout uses SIGALRM.
    before = signal.signal(signal.SIGVTALRM, interrupt)
    # Python ignores an exception in a callback of the garbage collector.
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            repeat()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        gc.enable()
        signal.signal(signal.SIGVTALRM, before)
