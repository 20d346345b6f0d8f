"""The task that seals: unsealed slices in, Kafka segments out, as `sparklog.compaction.segment_output` writes them.

That the storage is the driver's needs no check here: its files and their checksums are the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.compaction.segment_output import SealPart, SegmentOutput, write_segments
from sparklog.errors import BadRequest
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.state.commit import SEAL, Edit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.intents import Rewrite
from sparklog.log.state.slices import FileSlices
from sparklog.maintenance.work import Done, PieceReport, Progress, silent
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.format.transaction_index import AbortedTransactions


@dataclass(frozen=True, slots=True)
class SealWork:
    """Seals some segments of some partitions of a topic. See `sparklog.maintenance.work.Work`."""

    store: Store
    topic: str
    topic_id: str
    read_version: int
    configs: TopicConfigs
    parts: tuple[SealPart, ...]
    env: Env = SYSTEM

    @property
    def op(self) -> str:
        return SEAL

    @property
    def title(self) -> str:
        first, last = self.partitions[0], self.partitions[-1]
        more = f" to {last} ({len(self.parts)} partitions)" if last != first else ""
        return f"seal {self.topic}-{first}{more}"

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(part.partition for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def run(self, progress: Progress = silent) -> Done:
        """Write the segments. `Corrupt` names a damaged slice, `Conflict` says that a file was replaced meanwhile."""
        started = self.env.now()
        unique = self.env.new_id()
        files = write_segments([self._output(part, unique) for part in self.parts], progress)
        seconds, nbytes = self.env.now().elapsed_ms(started) / 1000, self.nbytes
        return Done(
            tuple(rewrite for part in self.parts for rewrite in _rewrites(part)),
            tuple(file for each in files for file in each),
            tuple(
                _report(self, part, own, seconds * part.nbytes / nbytes)
                for part, own in zip(self.parts, files, strict=True)
            ),
        )

    def _output(self, part: SealPart, unique: str) -> SegmentOutput:
        from sparklog.compaction.segment_writer import SegmentWriter

        writer = SegmentWriter(self.store, self.topic, part.partition, self.read_version, unique, self.configs)
        return SegmentOutput(
            self.store, self.topic, part, writer, self.configs.segment_bytes, lambda: self._aborted(part)
        )

    def _aborted(self, part: SealPart) -> AbortedTransactions:
        """Kafka's own aborted transactions of a partition."""
        from sparklog.compaction.producer_state import replay

        if part.history is None:
            raise BadRequest("slices with Kafka's transactions are sealed with the partition's history")
        return replay(self.store, self.topic, part.history, part.log_end).aborted


def _rewrites(part: SealPart) -> list[Rewrite]:
    """One edit for each segment."""
    return [
        Rewrite(Edit(part.partition, int(sources.base[0]), int(sources.end[-1])), sources.inputs())
        for sources in part.segments
    ]


def _report(work: SealWork, part: SealPart, files: Sequence[FileSlices], seconds: float) -> PieceReport:
    return PieceReport(
        action=SEAL,
        topic=work.topic,
        partition=part.partition,
        records_before=sum(int(sources.records.sum()) for sources in part.segments),
        records_after=sum(sum(file.records) for file in files),
        bytes_before=part.nbytes,
        bytes_after=sum(file.size for file in files),
        seconds=seconds,
    )
