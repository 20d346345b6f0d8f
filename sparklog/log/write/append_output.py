"""Append files, slices one after the other and the footer that describes them: written, or handed to the commit.

A writer whose encoded slices and footer are at most `inline.records.bytes`, or of one of several tasks `task_bytes` of
it, uploads nothing. Its result is a file without a path, which has all of its bytes along (`inline_file`). Before the
commit the driver joins those of all tasks: they become the commit's tail, or one append file where they are too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sparklog.format.append_file import HEAD_BYTES, SLICE_BYTES, TAIL_BYTES, WrittenSlice, encode_footer
from sparklog.format.slice_columns import WRITTEN, written_values
from sparklog.log.journal.names import file_key
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.storage.store import ObjectWriter, Store

TASK_BYTES = 16 << 10
"""Of one task at least: see `task_bytes`."""


class AppendOutput:
    """The file `path` below the folder of `topic`. It exists once `close` has returned; `discard` leaves nothing."""

    def __init__(self, store: Store, topic: str, path: str) -> None:
        self.path = path
        self.position = 0
        self._slices: list[WrittenSlice] = []
        self._writer: ObjectWriter = store.writer(file_key(topic, path))

    def write(self, *data: bytes | bytearray | memoryview) -> None:
        """Append some bytes of a slice, all or as many as are held at a time; `end_slice` describes the slice then."""
        for piece in data:
            self._writer.write(piece)

    def end_slice(self, written: WrittenSlice) -> None:
        self.position += written.nbytes
        self._slices.append(written)

    def close(self) -> FileSlices:
        footer = encode_footer(self._slices)
        self._writer.write(footer)
        self._writer.close()
        return FileSlices.of(self.path, self._slices, len(footer))

    def discard(self) -> None:
        self._writer.discard()


def write_file(
    store: Store, topic: str, path: str, slices: Iterable[WrittenSlice], data: Iterable[bytes | bytearray | memoryview]
) -> FileSlices:
    """Write an append file of these slices; `data`: their bytes, back to back."""
    output = AppendOutput(store, topic, path)
    try:
        output.write(*data)
        for written in slices:
            output.end_slice(written)
        return output.close()
    except BaseException:
        output.discard()
        raise


def is_inline(file: FileSlices) -> bool:
    return file.path == INLINE_PATH


def inline_file(slices: Sequence[WrittenSlice], data: bytes) -> FileSlices:
    """Return a file that is not written; `data`: the bytes of its slices, back to back."""
    footer = encode_footer(slices)
    return FileSlices.of(INLINE_PATH, slices, len(footer), data=data + footer)


def inline_file_bytes(slices: int, nbytes: int) -> int:
    """Return the size of a tail with so many slices, of so many bytes together."""
    return nbytes + HEAD_BYTES + TAIL_BYTES + slices * SLICE_BYTES


def task_bytes(most: int) -> int:
    """Return what a task hands to the driver, which holds that of all: an eighth of `most`, but 16 KiB always."""
    return min(most, max(TASK_BYTES, most // 8))


def joined(files: Sequence[FileSlices]) -> FileSlices:
    """Return several files that are not written as one."""
    if len(files) == 1:
        return files[0]
    slices = [written for file in files for written in written_slices(file)]
    return inline_file(slices, b"".join(slice_bytes(file) for file in files))


def slice_bytes(file: FileSlices) -> bytes:
    """Return the bytes of the slices of a file that is not written."""
    return file.data[: file.size - file.footer_length]


def written_slices(file: FileSlices) -> list[WrittenSlice]:
    """Return the slices of a file as its writer described them. They are small, so they have no index."""
    rows = zip(*written_values(file), strict=True)
    return [WrittenSlice(**dict(zip(WRITTEN, row, strict=True))) for row in rows]


def placed(
    store: Store, topic: str, files: Sequence[FileSlices], max_inline_bytes: int, new_path: Callable[[], str]
) -> list[FileSlices]:
    """Join the files that are not written into one. If it has more than `max_inline_bytes`, write it as `new_path`."""
    small = [index for index, file in enumerate(files) if is_inline(file)]
    if not small:
        return list(files)
    one = joined([files[index] for index in small])
    if one.size > max_inline_bytes:
        one = write_file(store, topic, new_path(), written_slices(one), [slice_bytes(one)])
    first = small[0]
    return [one if index == first else file for index, file in enumerate(files) if index == first or file.path]
