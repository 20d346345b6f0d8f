"""`StopSignals`, which lets a job complete its current step when it is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from sparklog.output import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Raises `KeyboardInterrupt` at the next check after SIGINT (Ctrl-C) or SIGTERM, so that steps are not interrupted.

    A second signal interrupts the step. Signals are received only if the context manager is entered in the main thread.

    Args:
        notice: The line to print when the first signal does not interrupt the current step.
    """

    def __init__(self, notice: str) -> None:
        self._notice = notice
        self._is_received = False
        self._is_waiting = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._is_received or self._is_waiting:
            raise KeyboardInterrupt
        self._is_received = True
        # A write raises RuntimeError if the signal has interrupted another write to the same file.
        with suppress(RuntimeError, OSError):
            say(self._notice)

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a signal was received."""
        if self._is_received:
            raise KeyboardInterrupt

    def sleep(self, sleep: Callable[[float], None], seconds: float) -> None:
        """Sleep until the time is over. A signal ends the sleep with `KeyboardInterrupt`."""
        self._is_waiting = True
        try:
            # A signal may have been received before `_is_waiting` was set.
            self.check()
            sleep(seconds)
        finally:
            self._is_waiting = False
