"""Write encoded slices to append files, or keep them as inline records of the commit.

An append file consists of slices and a footer that describes them. If the encoded slices and the footer of a writer are
at most `inline.records.bytes`, the writer does not upload a file. (A task may use only a part of this limit; see
`task_inline_bytes`.) Instead, its result is an inline file, which has no path and contains its bytes. Before the
commit, the driver joins the inline files of all tasks. They become the inline records of the commit or, if they are too
large together, one append file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from sparklog.errors import SparklogError
from sparklog.format.append_file import HEADER_BYTES, SLICE_BYTES, TRAILER_BYTES, WrittenSlice, encode_footer
from sparklog.format.slice_columns import WRITTEN, written_values
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import append_path, file_key
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.log.write.append_target import AppendTarget
from sparklog.storage.parallel_reads import request_both
from sparklog.storage.store import ObjectWriter, Store

Bytes = bytes | bytearray | memoryview
MIN_TASK_BYTES = 16 << 10


class AppendOutput:
    """Writes the append file `path` of `topic`. The file exists after `close`, but not after `discard`."""

    def __init__(self, store: Store, topic: str, path: str) -> None:
        self.path = path
        self.position = 0
        self._slices: list[WrittenSlice] = []
        self._writer: ObjectWriter = store.writer(file_key(topic, path))

    def write(self, *data: Bytes) -> None:
        """Append bytes to the current slice. After the last call for a slice, call `end_slice`."""
        for part in data:
            self._writer.write(part)

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
    store: Store, topic: str, path: str, slices: Iterable[WrittenSlice], data: Iterable[Bytes]
) -> FileSlices:
    """Write an append file. `data` contains the bytes of the slices, without gaps."""
    output = AppendOutput(store, topic, path)
    try:
        output.write(*data)
        for written in slices:
            output.end_slice(written)
        return output.close()
    except BaseException:
        output.discard()
        raise


class SliceOutput:
    """The slices of one writer. Small results become an inline file, and larger results become append files of
    `file_bytes`.

    Before the first file is created, `target.check_root` must have run in this process, unless the caller has checked
    the root (`is_root_checked`). On a disk, the check runs before the file is created, because the path may be a
    different disk on this host. On a remote store, it runs in parallel with closing the file, so it takes no additional
    time.
    """

    def __init__(self, target: AppendTarget, env: Env, file_bytes: int, *, is_root_checked: bool) -> None:
        self._target = target
        self._env = env
        self._file_bytes = file_bytes
        self._is_root_checked = is_root_checked
        self._inline: list[tuple[WrittenSlice, bytes]] = []
        self._output: AppendOutput | None = None
        self._files: list[FileSlices] = []

    def add(self, written: WrittenSlice, data: Sequence[Bytes]) -> None:
        if written.index is None and self._fits_inline(written):
            self._inline.append((written, b"".join(data)))
            return
        inline, self._inline = self._inline, []
        for earlier, earlier_data in inline:
            self._write(earlier, [earlier_data])
        self._write(written, data)

    def finish(self) -> list[FileSlices]:
        """Return the durable files, or the inline file."""
        self._close()
        if self._inline:
            return [inline_file([written for written, _ in self._inline], b"".join(data for _, data in self._inline))]
        return self._files

    def discard(self) -> None:
        """Remove the file in progress. The vacuum deletes complete files, because no commit references them."""
        self._inline = []
        output, self._output = self._output, None
        if output is not None:
            output.discard()

    def _fits_inline(self, written: WrittenSlice) -> bool:
        if self._output is not None or self._files:
            return False
        nbytes = sum(earlier.nbytes for earlier, _ in self._inline) + written.nbytes
        return inline_file_bytes(len(self._inline) + 1, nbytes) <= self._target.inline_bytes

    def _write(self, written: WrittenSlice, data: Sequence[Bytes]) -> None:
        if self._output is not None and self._output.position + written.nbytes > self._file_bytes:
            self._close()
        if self._output is None:
            self._output = self._new_file()
        self._output.write(*data)
        self._output.end_slice(written)

    def _new_file(self) -> AppendOutput:
        target = self._target
        if target.store.parallel_reads == 1:
            if self._must_check_root():
                target.check_root()
            self._is_root_checked = True
        return AppendOutput(target.store, target.topic, append_path(target.read_version, self._env.new_id()))

    def _must_check_root(self) -> bool:
        checked = self._target.root_checked_at
        return not self._is_root_checked and (checked is None or not self._env.now().is_soon_after(checked))

    def _close(self) -> None:
        output, self._output = self._output, None
        if output is None:
            return
        if not self._must_check_root():
            closed = output.close()
        else:
            try:
                closed, _ = request_both(self._target.store, output.close, self._target.check_root)
            except SparklogError:
                # The root may have been replaced, so the file may be in another root.
                with suppress(SparklogError):
                    self._target.store.delete(file_key(self._target.topic, output.path))
                raise
        self._is_root_checked = True
        self._files.append(closed)


def is_inline(file: FileSlices) -> bool:
    return file.path == INLINE_PATH


def inline_file(slices: Sequence[WrittenSlice], data: bytes) -> FileSlices:
    """Return an inline file. `data` contains the bytes of its slices, without gaps."""
    footer = encode_footer(slices)
    return FileSlices.of(INLINE_PATH, slices, len(footer), data=data + footer)


def inline_file_bytes(slices: int, nbytes: int) -> int:
    """Return the size of an inline file with this number of slices and `nbytes` bytes in total."""
    return nbytes + HEADER_BYTES + TRAILER_BYTES + slices * SLICE_BYTES


def task_inline_bytes(max_bytes: int) -> int:
    """Return the inline limit of one task: an eighth of `max_bytes`, but at least 16 KiB.

    The limit of a task is lower than the limit of the commit, because the driver keeps the inline files of all tasks in
    memory.
    """
    return min(max_bytes, max(MIN_TASK_BYTES, max_bytes // 8))


def join_inline(files: Sequence[FileSlices]) -> FileSlices:
    """Join several inline files into one inline file."""
    if len(files) == 1:
        return files[0]
    slices = [written for file in files for written in written_slices(file)]
    return inline_file(slices, b"".join(slice_bytes(file) for file in files))


def slice_bytes(file: FileSlices) -> bytes:
    """Return the bytes of the slices of an inline file."""
    return file.data[: file.size - file.footer_length]


def written_slices(file: FileSlices) -> list[WrittenSlice]:
    """Return the slices of an inline file in the form that their writer returned. They have no index, because they are
    small.
    """
    rows = zip(*written_values(file), strict=True)
    return [WrittenSlice(**dict(zip(WRITTEN, row, strict=True))) for row in rows]


def place_inline_records(
    store: Store, topic: str, files: Sequence[FileSlices], max_inline_bytes: int, new_path: Callable[[], str]
) -> list[FileSlices]:
    """Join the inline files. If they exceed `max_inline_bytes`, write them to the append file `new_path()`."""
    inline = [index for index, file in enumerate(files) if file.path == INLINE_PATH]
    if not inline:
        return list(files)
    joined = join_inline([files[index] for index in inline])
    if joined.size > max_inline_bytes:
        joined = write_file(store, topic, new_path(), written_slices(joined), [slice_bytes(joined)])
    first = inline[0]
    return [joined if index == first else file for index, file in enumerate(files) if index == first or file.path]
