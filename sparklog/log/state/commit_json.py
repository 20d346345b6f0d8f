"""The fields of the JSON document of a commit. docs/reference/format-commits.md describes them.

The fields are written in the order of the tables. The order must not change, because commits are canonical JSON: equal
commits have equal bytes.

Most attributes have the names of their fields. The following names differ, because the fields were named first:

| field               | attribute                           | meaning                      |
|---------------------|-------------------------------------|------------------------------|
| `carried`           | `Commit.embedded`                   | copies of earlier commits    |
| `holds`             | `Changes.leases`                    | leases of versions           |
| `earlierPartitions` | `Changes.previous_partition_counts` | counts before this commit    |
| `cleanedThrough`    | `Edit.first_dirty_offset`           | where cleaning continues     |
| `bytes`             | `nbytes`                            | a size                       |
"""

from __future__ import annotations

from operator import add

from sparklog.format.slice_columns import COMMIT_LISTS
from sparklog.log.journal.documents import (
    INT32_MAX,
    INT64_MAX,
    TEXT,
    TEXTS,
    UINT32_MAX,
    Document,
    Fields,
    Member,
    MemberKind,
    StoredDocument,
    members,
    numbers_by_partition,
    numbers_by_text,
    object_of,
    objects_by_text,
    objects_of,
    one_of,
    texts_by_text,
    whole,
    wholes,
)
from sparklog.log.journal.names import MAX_PARTITIONS, MAX_VERSION, is_sealed, path_read_version
from sparklog.log.state.commit import (
    MAX_EMBEDDED,
    OPS,
    Commit,
    Edit,
    EmbeddedCommits,
    InlineRecords,
    RemovedSlices,
    Txn,
    TxnDecision,
    VersionLease,
    WriterBatch,
)
from sparklog.log.state.kafka_source import (
    KAFKA_ENDED_JSON,
    KAFKA_OPEN_JSON,
    KAFKA_SOURCE_JSON,
    PARTITION,
    PARTITIONS,
)
from sparklog.log.state.slices import INLINE_PATH, Content, FileSlices
from sparklog.storage.store import MAX_DOCUMENT

CONTENT_JSON = Document(Content, Member("bytes", whole(0), "nbytes"), Member("layout", TEXT))
WRITER_JSON = Document(
    WriterBatch,
    *members(TEXT, "kind", "id"),
    Member("batch", whole()),
    Member("run", TEXT, nullable=True),
    Member("count", whole(0)),
    Member("epoch", whole(0), optional=True),
    inline={"content": CONTENT_JSON},
)

REMOVED_SLICES_JSON = Document(
    RemovedSlices,
    Member("path", TEXT),
    Member("partition", PARTITIONS),
    *members(wholes(0, like="partition"), "base", "position"),
)
INLINE_JSON = Document(
    InlineRecords, Member("bytes", whole(1, MAX_DOCUMENT), "nbytes"), Member("crc", whole(0, UINT32_MAX))
)
EMBEDDED_JSON = Document(
    EmbeddedCommits,
    Member("commits", whole(1, MAX_EMBEDDED)),
    Member("bytes", whole(1, MAX_DOCUMENT), "nbytes"),
    Member("crc", whole(0, UINT32_MAX)),
)
EDIT_JSON = Document(
    Edit,
    Member("partition", PARTITION),
    *members(whole(0), "start", "end"),
    Member("cleanedThrough", whole(0), "first_dirty_offset", nullable=True),
    check=lambda item, edit: item.integer("end", edit.start),
)
TXN_JSON = Document(
    Txn,
    Member("id", TEXT),
    Member("n", whole(0, MAX_VERSION)),
    Member("siblings", numbers_by_text()),
    Member("timeoutMs", whole(0), nullable=True),
)
TXN_DECISION_JSON = Document(
    TxnDecision,
    Member("id", TEXT),
    Member("n", whole(0)),
    Member("committed", wholes(0)),
    Member("siblings", numbers_by_text()),
)
VERSION_LEASE_JSON = Document(VersionLease, Member("version", whole(0)), Member("expiresMs", whole(0), nullable=True))


def _path(item: Fields, name: str) -> str:
    if item.document.get(name) == INLINE_PATH:
        return INLINE_PATH
    path = item.text(name)
    if path_read_version(path) is None:
        raise item.bad(name, "the path of a data file")
    return path


def _check_file(item: Fields, file: FileSlices) -> None:
    """Raise `Corrupt` if the slices and the footer of a file exceed the file, or a slice exceeds the maximum offset."""
    # A file may have thousands of slices, so their ends are computed without a loop.
    size, max_footer = file.size, min(file.size, INT32_MAX)
    if file.footer_length > max_footer:
        raise item.bad("footerLength", f"an integer from 0 to {max_footer}")
    if (file.footer_length == 0) != is_sealed(file.path):
        raise item.bad("footerLength", "0 in a sealed segment and positive in any other file")
    if not file.position and sum(file.nbytes) + file.footer_length > size:
        raise item.bad("bytes", f"at most the file's size {size} in total")
    if file.position and max(map(add, file.position, file.nbytes)) > size - file.footer_length:
        raise item.bad("position", f"such that each slice ends before the footer of a file of {size} bytes")
    if max(map(add, file.base, file.offsets), default=0) > INT64_MAX:
        raise item.bad("base", f"such that each slice ends at offset {INT64_MAX} or below")


def _check_inline_file(item: Fields, commit: Commit) -> None:
    """Raise `Corrupt` unless the commit has inline records and one inline file, or neither."""
    inline, files = commit.inline, [file for file in commit.files if file.path == INLINE_PATH]
    if len(files) != (0 if inline is None else 1):
        raise item.bad("inline", f"present if and only if there is one file without a path (there are {len(files)})")
    if inline is None:
        return
    (file,) = files
    if file.position or not file.size == inline.nbytes == sum(file.nbytes) + file.footer_length:
        raise item.bad("inline", f"as large as its file ({file.size} bytes), without gaps between slices and footer")


FILE_JSON = Document(
    FileSlices,
    Member("path", MemberKind(_path)),
    *members(whole(0), "size", "footerLength"),
    Member("partition", PARTITIONS),
    *(
        Member(item.name, wholes(item.low, item.high, like="partition"), item.attribute, optional=item.optional)
        for item in COMMIT_LISTS
        if item.name != "partition"
    ),
    check=_check_file,
)
COMMIT_JSON = StoredDocument(
    "commit",
    Commit,
    *members(TEXTS, "readFeatures", "writeFeatures"),
    Member("version", whole(0)),
    *members(TEXT, "topicId", "commitId"),
    Member("prevCrc", whole(0, UINT32_MAX), nullable=True),
    Member("timeMs", whole(0)),
    Member("leaderEpoch", whole(0, INT32_MAX)),
    Member("writer", object_of(WRITER_JSON), nullable=True),
    Member("writers", objects_of(WRITER_JSON), optional=True),
    Member("op", one_of(*OPS)),
    Member("files", objects_of(FILE_JSON), optional=True),
    Member("carried", object_of(EMBEDDED_JSON), "embedded", optional=True),
    Member("inline", object_of(INLINE_JSON), optional=True),
    Member("remove", objects_of(REMOVED_SLICES_JSON), optional=True),
    Member("edits", objects_of(EDIT_JSON), optional=True),
    Member("logStarts", numbers_by_partition(MAX_PARTITIONS), optional=True),
    Member("configs", texts_by_text(nullable=True), optional=True),
    Member("partitions", whole(1, MAX_PARTITIONS), optional=True),
    Member("earlierPartitions", wholes(1, MAX_PARTITIONS), "previous_partition_counts", optional=True),
    Member("txn", object_of(TXN_JSON), optional=True),
    Member("resolved", objects_of(TXN_DECISION_JSON), optional=True),
    Member("kafkaOpen", objects_of(KAFKA_OPEN_JSON), optional=True),
    Member("kafkaEnded", objects_of(KAFKA_ENDED_JSON), optional=True),
    Member("kafkaSource", object_of(KAFKA_SOURCE_JSON), optional=True),
    Member("holds", objects_by_text(VERSION_LEASE_JSON, nullable=True), "leases", optional=True),
    Member("floor", whole(0), optional=True),
    Member("expired", numbers_by_text(), optional=True),
    *members(whole(0), "clockMs", "clockSince", optional=True),
    check=_check_inline_file,
)
