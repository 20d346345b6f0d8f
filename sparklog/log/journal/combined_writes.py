"""One entry for the steps of several threads: members of a group that live in one process.

Each entry of a journal costs a durable write, and threads that write at once lose races against one another. Here the
first of them writes; steps that come meanwhile wait, and one entry takes them all. Each is judged on the state that the
one before it made, and each thread gets what its own step raised.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sparklog.errors import SparklogError, Unavailable
from sparklog.log.journal.entry_log import EntryLog, StateEntry, Step
from sparklog.storage.fork_safety import ForkLock

E = TypeVar("E", bound=StateEntry)


@dataclass(slots=True, eq=False)
class _WaitingStep(Generic[E]):
    """The step of a thread, and what came of it: the state after the entry, or an error."""

    step: Step[E]
    process: int = field(default_factory=os.getpid)
    state: E | None = None
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.state is not None or self.error is not None


class CombinedWrites(Generic[E]):
    """Writes entries of a log, each with the steps of all threads that wait. Steps must be pure: see `EntryLog.write`.

    A child that was forked while threads waited does not write their steps: the parent does.
    """

    def __init__(self, log: EntryLog[E]) -> None:
        self._log = log
        self._writing = ForkLock()
        self._waiting: list[_WaitingStep[E]] = []

    def write(self, step: Step[E]) -> E:
        """As `EntryLog.write`. `Unavailable`: the outcome is unknown, of all steps of the entry."""
        request = _WaitingStep(step)
        self._waiting.append(request)
        with self._writing:
            if not request.is_done:
                waiting, self._waiting = self._waiting, []
                # A step may have come to the list just after it was taken: its thread writes it when it has the lock.
                requests = [item for item in waiting if item.process == request.process]
                self._write_all(requests if request in requests else [*requests, request])
        if request.error is not None:
            raise request.error
        assert request.state is not None
        return request.state

    def _write_all(self, requests: Sequence[_WaitingStep[E]]) -> None:
        def combined(base: E) -> E | None:
            newest: E | None = None
            for request in requests:
                request.error = None
                try:
                    newest = request.step(base if newest is None else newest) or newest
                except SparklogError as error:
                    request.error = error
            refusal = next((request.error for request in requests if request.error is not None), None)
            if newest is None and refusal is not None:
                # The log reads on, and asks once more: the state may not have been the newest.
                raise refusal
            return newest

        try:
            state = self._log.write(combined)
        except BaseException as error:
            if not isinstance(error, Exception):
                message = f"{self._log.title}: the thread that wrote was interrupted; outcome unknown"
                error = Unavailable(message, is_unknown=True)
            if all(error is not request.error for request in requests):
                for request in requests:
                    request.error = error
                raise
            state = self._log.current()
        for request in requests:
            request.state = state
