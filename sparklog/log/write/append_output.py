"""An append file that is written: slices one after the other, and the footer that describes them."""

from __future__ import annotations

from collections.abc import Iterable

from sparklog.format.append_file import WrittenSlice, encode_footer
from sparklog.log.state.slices import FileSlices
from sparklog.log.write.inline_records import slice_bytes, written_slices
from sparklog.storage.store import ObjectWriter, Store


class AppendOutput:
    """The file `path` below the folder of `topic`. It exists once `close` has returned; `discard` leaves nothing."""

    def __init__(self, store: Store, topic: str, path: str) -> None:
        self.path = path
        self.position = 0
        self._slices: list[WrittenSlice] = []
        self._writer: ObjectWriter = store.writer(f"{topic}/{path}")

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


def write_out(store: Store, topic: str, path: str, file: FileSlices) -> FileSlices:
    """Write a file that is not written, as an append file."""
    return write_file(store, topic, path, written_slices(file), [slice_bytes(file)])
