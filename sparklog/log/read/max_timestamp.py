"""The record with the largest timestamp: Kafka's ListOffsets for MAX_TIMESTAMP (`kafka-get-offsets --time -3`).

Every `LogView` answers "the first record at or after a time", and the largest timestamp is the last time that has
an answer: it is searched for, all partitions of a topic at once. Each answer lifts the search to its own
timestamp, so that a day of milliseconds takes some thirty steps up and as many down, most of which metadata
answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.log.state.view import READ_UNCOMMITTED, LogView, TimestampOffset

NO_TIME = 2**63 - 1
"""Greater than every timestamp but one; a record that carries this very one is found by the first question."""


@dataclass
class _Search:
    """Of one partition: the best answer so far lies at `best.timestamp`; no record is at `above` or later."""

    best: TimestampOffset
    above: int
    step: int = 1

    @property
    def done(self) -> bool:
        return self.best.timestamp + 1 >= self.above

    @property
    def target(self) -> int:
        """The next time to ask for: up in growing steps, then the middle."""
        low = self.best.timestamp
        return min(low + self.step, (low + self.above) // 2)

    def tell(self, target: int, answer: TimestampOffset | None) -> None:
        """Take the answer for a target."""
        if answer is None:
            self.above = target
        else:
            self.best, self.step = answer, self.step * 2


def offsets_of_max_timestamp(
    view: LogView, topic: str, isolation: str = READ_UNCOMMITTED
) -> dict[int, TimestampOffset | None]:
    """Per partition, the first record with the largest timestamp below the isolation bound; None if none has one."""
    partitions = list(view.bounds(topic))
    first = view.offsets_for_timestamps(topic, dict.fromkeys(partitions, 0), isolation)
    last = view.offsets_for_timestamps(topic, dict.fromkeys(partitions, NO_TIME), isolation)
    searches = {
        partition: _Search(last[partition] or answer, NO_TIME)
        for partition, answer in first.items()
        if answer is not None
    }
    while targets := {partition: search.target for partition, search in searches.items() if not search.done}:
        answers = view.offsets_for_timestamps(topic, targets, isolation)
        for partition, target in targets.items():
            searches[partition].tell(target, answers[partition])
    return {partition: searches[partition].best if partition in searches else None for partition in partitions}
