"""One append file being written: slices in, then the footer. Appending and merging write the same form."""

from __future__ import annotations

from sparklog.format.append_file import WrittenSlice, encode_footer
from sparklog.log.state.slices import FileSlices
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
        """Describe the last `written.nbytes` bytes as one slice."""
        self.position += written.nbytes
        self._slices.append(written)

    def close(self) -> FileSlices:
        """Write the footer, make the file durable, and return its slices."""
        footer = encode_footer(self._slices)
        self._writer.write(footer)
        self._writer.close()
        return FileSlices.of(self.path, self._slices, len(footer))

    def discard(self) -> None:
        """Leave nothing behind."""
        self._writer.discard()
