"""Test the checksum of the index files of a segment."""

from __future__ import annotations

from crc32c import crc32c

from sparklog.format.checksums import index_crc


def test_index_crc_covers_lengths_and_bytes_in_order() -> None:
    first, second, third = b"12345678", b"abcdefghijkl", b"x" * 34
    whole = b"".join(len(each).to_bytes(8, "big") + each for each in (first, second, third))
    assert index_crc(first, second, third) == crc32c(whole)


def test_index_crc_detects_byte_moved_to_next_file() -> None:
    assert index_crc(b"ab", b"c", b"") != index_crc(b"a", b"bc", b"") != index_crc(b"a", b"b", b"c")
