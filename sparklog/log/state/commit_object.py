"""The bytes of a commit object. It has up to three sections, without gaps:

1. the document: canonical JSON in one line
2. copies of the documents of earlier commits (`EmbeddedCommits`); see `sparklog.log.state.embedded_commits`
3. the inline records (`InlineRecords`): the bytes of an append file

If there are inline records, one of the `files` has the path "", and the positions of its slices are relative to section
3. `decode_commit` converts this file to a regular file, which has the path of the commit, the size of the entire
object, and positions relative to the start of the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import crc32c
from sparklog.format.checksums import appended_crc
from sparklog.log.journal.documents import document_of
from sparklog.log.journal.names import commit_path
from sparklog.log.state.commit import Commit, Section
from sparklog.log.state.commit_json import COMMIT_JSON
from sparklog.log.state.slices import INLINE_PATH
from sparklog.storage.store import MAX_DOCUMENT


def encode_commit(commit: Commit) -> bytes:
    """Return the bytes of a new commit: its document, the embedded documents and the inline records.

    Raises `ValueError` if the commit was decoded, so that its sections do not contain their bytes.
    """
    for section in commit.sections:
        if len(section.data) != section.nbytes:
            raise ValueError(f"the bytes of the {section.title} of commit {commit.version} are missing")
    data = b"".join([COMMIT_JSON.encode(commit), *[section.data for section in commit.sections]])
    if len(data) > MAX_DOCUMENT:
        raise BadRequest(
            f"the commit size {len(data)} exceeds the maximum {MAX_DOCUMENT}; write fewer records or changes at a time"
        )
    return data


def decode_commit(data: bytes, key: str, version: int, *, check_sections: bool = True) -> Commit:
    """Decode the commit in `data`.

    Args:
        data: the bytes of the object, or only of its document.
        key: the object's key, for error messages.
        version: the version that the commit must have.
        check_sections: whether to also check the sections after the document.

    Raises:
        BadRequest: a newer release wrote the commit.
        Corrupt: the commit is damaged.
    """
    document = document_of(data)
    fields = COMMIT_JSON.fields(document, key)
    if (stored := fields.integer("version", 0)) != version:
        raise Corrupt(f"expected commit {version}, found commit {stored}; restore the object", file=key)
    commit = COMMIT_JSON.from_json(fields, nbytes=len(document))
    sections = commit.sections
    if check_sections or not sections:
        _check_sections(sections, memoryview(data)[commit.nbytes :], key)
    crc = crc32c.crc32c(document)
    for section in sections:
        crc = appended_crc(crc, section.nbytes, section.crc)
    commit.crc = crc
    if commit.inline is not None:
        _locate_inline_file(commit)
    return commit


def has_inline_records(data: bytes) -> bool:
    """Return True if a commit object contains inline records. The object may be damaged, or may not be a commit."""
    # The pattern does not match inside a JSON string, because the quotes in a string are escaped. It does not match a
    # lease either, because the names of leases contain a colon.
    return b'"inline":{' in document_of(data)


def _check_sections(sections: Sequence[Section], rest: memoryview, key: str) -> None:
    """Raise `Corrupt` if the bytes after the document do not have the sizes and CRC-32Cs of the sections."""
    if len(rest) != (expected := sum([section.nbytes for section in sections])):
        raise Corrupt(
            f"commit: expected {expected} bytes after the document, found {len(rest)}; restore the commit", file=key
        )
    for section in sections:
        if crc32c.crc32c(rest[: section.nbytes]) != section.crc:
            raise Corrupt(f"commit: the {section.title} do not match their CRC-32C; restore the commit", file=key)
        rest = rest[section.nbytes :]


def _locate_inline_file(commit: Commit) -> None:
    """Set the path, size and positions of the inline file of a decoded commit."""
    start = commit.inline_start
    for file in commit.files:
        if file.path == INLINE_PATH:
            # There are no gaps between the slices, because the slices and the footer fill the file.
            file.position = tuple(accumulate(file.nbytes, initial=start))[: len(file)]
            file.path, file.size = commit_path(commit.version), start + file.size
