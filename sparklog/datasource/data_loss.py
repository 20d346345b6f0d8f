"""Reports of records that can no longer be read (`failOnDataLoss`)."""

from __future__ import annotations

from sparklog.datasource.spark_workers import warn
from sparklog.errors import NotFound
from sparklog.log.state.view import Bounds

OTHER_ROOT = ", or the checkpoint belongs to another root. In this case, give this query a separate checkpointLocation"


class DataLoss:
    """Reports records that can no longer be read. An error is raised or, if `failOnDataLoss=false`, a single warning is
    logged.
    """

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._warned: set[str] = set()

    def report(self, what: str, otherwise: str, *, hint: str = "", remedy: str = "") -> None:
        """Raise NotFound, or log a warning if `failOnDataLoss=false`.

        Args:
            what: The sentence that describes the loss.
            otherwise: The action of the query if failOnDataLoss=false, such as "skips it".
            hint: Another possible reason, which is appended to the sentence.
            remedy: The action to take if no records were lost, for example because an option contains a wrong offset.
        """
        if self.fail and remedy:
            raise NotFound(f"{what}: {remedy}")
        if self.fail:
            raise NotFound(
                f"{what}{hint}. If this loss is acceptable, set failOnDataLoss=false, so that the query {otherwise}"
            )
        if what not in self._warned:
            self._warned.add(what)
            warn(f"{what}; because failOnDataLoss=false, the query {otherwise}")

    def check_start(self, topic: str, partition: int, start: int, end: int, limits: Bounds) -> int:
        """Return the start of a range. If the start is below the log start offset, report data loss and return the log
        start offset.
        """
        if start >= limits.log_start:
            return start
        stop = min(end, limits.log_start)
        self.report(
            f"Offsets {start} to {stop - 1} of {topic}-{partition} were deleted: the log starts at {limits.log_start} "
            "(retention or delete-records)",
            "continues at the log start",
        )
        return stop

    def check_end(
        self, topic: str, partition: int, offset: int, limits: Bounds, otherwise: str, option: str = ""
    ) -> int:
        """Return an offset. If the offset is above the log end offset, report data loss and return the log end offset.

        Args:
            topic: The topic.
            partition: The partition.
            offset: The offset.
            limits: The bounds of the partition.
            otherwise: The action of the query if failOnDataLoss=false, such as "starts at the log end".
            option: The option that set the offset.
        """
        if offset > limits.log_end:
            what = f"Offset {offset} of {topic}-{partition} is out of range: the log ends at {limits.log_end}"
            valid = f"{option} accepts {limits.log_start} to {limits.log_end}" if option else ""
            self.report(what, otherwise, hint=f"; it was restored from an older copy{OTHER_ROOT}", remedy=valid)
        return min(offset, limits.log_end)
