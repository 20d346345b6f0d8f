"""Test that interpreted and compiled kernels return the same records, bytes, hashes and errors."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.decode import decode
from sparklog.format.encode import EncodeOptions, encode, encode_partitions
from sparklog.format.kernels import kernel_choice
from sparklog.format.kernels.encode_kernels import cell_size, varint_size, write_varint, zigzag
from sparklog.format.kernels.kernel_choice import Choice
from sparklog.format.kernels.kernel_memory import address
from sparklog.format.kernels.native_kernels import native
from sparklog.format.kernels.record_kernels import read_varint, read_varlong
from sparklog.format.kernels.warm import warm_up
from sparklog.format.key_hash import partition_for_key
from sparklog.format.payloads import payloads, record_fields
from sparklog.format.record_batch import BatchHeaders
from tests.format import old_messages
from tests.format.batch_samples import ALL, CODEC_NAMES
from tests.format.plain_encoder import with_create_time
from tests.format.test_damage import damaged, samples
from tests.format.test_round_trips import OPTIONS, RECORDS, columns_of
from tests.support.kernel_ways import both_ways, compiled, interpreted
from tests.support.seeds import examples

REPOSITORY = Path(__file__).parents[2]
INT64 = st.integers(-(2**63), 2**63 - 1)


def plain(value: object) -> object:
    """Convert a result of the format to comparable values, including every byte."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, pa.Array):
        value.validate(full=True)
        return (str(value.type), value.to_pylist())
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def outcome(work: Callable[[], object]) -> object:
    """Return the result of a call, or its error."""
    try:
        return plain(work())
    except (Corrupt, BadRequest) as error:
        return type(error).__name__, str(error)


def check(work: Callable[[], object]) -> object:
    first, second = both_ways(lambda: outcome(work))
    assert first == second
    return first


def read_all(data: bytes, headers: BatchHeaders) -> list[object]:
    """Return the records, decoded in two ways, and the fields that readers of keys use."""
    columns = decode(data, headers, columns=ALL, check_crc=False)
    shifted = decode(data, with_create_time(headers), columns=("value",), offset_shift=7, check_crc=False)
    return [columns, shifted, record_fields(payloads(data, headers, check_crc=False), headers)]


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("most", [4, 1 << 40])
def test_modes_read_and_write_fixtures_identically(fixtures: Path, most: int) -> None:
    """Only some batches of each file are encoded again.

    By default, only one file of each size up to 64 KiB is tested.
    """
    batches = records = 0
    files = {path.stat().st_size if most < 100 else path: path for path in sorted(fixtures.rglob("*.log"))}
    for path in files.values():
        data = path.read_bytes()
        if len(data) > most << 14:
            continue
        headers, again = both_ways(lambda data=data: scan_headers(data, whole=False))  # type: ignore[misc]
        assert plain(headers) == plain(again)
        wrong = check(lambda data=data, headers=headers: crc_failures(data, headers))  # type: ignore[misc]
        assert wrong is not None
        check(lambda data=data, headers=headers: read_all(data, headers))  # type: ignore[misc]
        sound = np.setdiff1d(np.arange(len(headers)), crc_failures(data, headers))
        for index in sound[~headers.is_legacy[sound]][:most].tolist():
            one = headers[index : index + 1]
            check(lambda data=data, one=one: written_again(data, one))  # type: ignore[misc]
            batches += 1
            records += int(one.count[0])
    assert batches > (500 if most < 100 else 5_000)
    assert records > batches


def written_again(data: bytes, header: BatchHeaders) -> list[object]:
    """Return the records of the batch as a new slice."""
    columns = decode(data, with_create_time(header), columns=ALL)
    times = np.maximum(columns.timestamp, -1)
    options = EncodeOptions("none", batch_bytes=300)
    new = encode(columns.key, columns.value, columns.headers, times, options=options)
    return [new, partition_for_key(columns.key, 7)]


@examples(40, 120)
@given(data=st.data(), records=RECORDS, options=OPTIONS, partitions=st.integers(1, 5))
def test_modes_write_and_read_random_records_identically(
    data: Any, records: list[Any], options: EncodeOptions, partitions: int
) -> None:
    key, value, headers, times = columns_of(records)
    first = data.draw(st.integers(0, max(len(records) - 1, 0)))
    some = (key[first:], value[first:].cast(pa.large_binary()), headers[first:], times[first:])
    check(lambda: encode(*some, options=options))
    check(lambda: partition_for_key(key, partitions))
    lanes = partition_for_key(key.fill_null(b""), partitions)
    check(lambda: encode_partitions(key, value, headers, times, lanes, options=options))
    with compiled():
        written = outcome(lambda: encode(key, value, headers, times, options=options))
        whole = b"" if isinstance(written, tuple) else encode(key, value, headers, times, options=options).data
    check(lambda: read_all(whole, scan_headers(whole)))


@examples(66, 200)
@given(value=INT64, tail=st.binary(max_size=12))
def test_modes_encode_int64_varints_identically(value: int, tail: bytes) -> None:
    bits = zigzag(value)
    assert bits == native(zigzag)(value)
    assert varint_size(bits) == native(varint_size)(bits)
    assert cell_size(value & 0xFFFF) == native(cell_size)(value & 0xFFFF)
    one, other = np.zeros(32, np.uint8), np.zeros(32, np.uint8)
    end = write_varint(address(one), bits) - address(one)
    assert native(write_varint)(address(other), bits) - address(other) == end
    assert one.tobytes() == other.tobytes()
    given_bytes = np.frombuffer(tail + one[:end].tobytes() + tail, np.uint8)
    begin = address(given_bytes)
    for function in (read_varint, read_varlong):
        for start in (0, len(tail)):
            for stop in (len(given_bytes), len(tail) + end - 1):
                read = function(begin + start, begin + stop)
                assert read == tuple(native(function)(begin + start, begin + stop))


def test_modes_detect_damage_identically() -> None:
    chance, failed = random.Random(28), 0
    batches = samples()
    for _ in range(600):
        batch = damaged(chance.choice(batches), chance)
        headers = scan_headers(batch, whole=False)
        failed += isinstance(check(lambda batch=batch, headers=headers: read_all(batch, headers)), tuple)  # type: ignore[misc]
    assert 100 < failed < 600


@pytest.mark.parametrize("magic", [0, 1])
def test_modes_detect_damage_of_old_messages_identically(magic: int) -> None:
    chance, failed = random.Random(magic), 0
    for _ in range(400):
        rows = [(i, 1_000 + i, b"k%d" % i, chance.choice([None, b"v" * i])) for i in range(chance.randrange(1, 9))]
        data = old_messages.messages(rows, magic=magic)
        if chance.random() < 0.6:
            inner = bytearray(data)
            if chance.random() < 0.8:
                inner[chance.randrange(len(inner))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
            data = old_messages.wrapper(
                chance.randrange(20), chance.choice(("gzip", "snappy")), bytes(inner), magic=magic
            )
        broken = bytearray(data + old_messages.message(30, b"k", b"v", magic=magic))
        if chance.random() < 0.7:
            broken[chance.randrange(len(broken))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        whole = bytes(broken)
        headers, again = both_ways(lambda whole=whole: scan_headers(whole, whole=False))  # type: ignore[misc]
        assert plain(headers) == plain(again)
        check(lambda whole=whole, headers=headers: crc_failures(whole, headers))  # type: ignore[misc]
        failed += isinstance(check(lambda whole=whole, headers=headers: read_all(whole, headers)), tuple)  # type: ignore[misc]
    assert 40 < failed < 400


def test_modes_reject_invalid_rows_identically() -> None:
    none = pa.array(
        [[("h", b"v")], [(None, b"v")]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    values = pa.array([b"a", b"b"])
    options = EncodeOptions("none", max_message_bytes=200)
    times = np.zeros(2, np.int64)
    assert check(lambda: encode(None, values, none, times, options=options)) == (
        "BadRequest",
        "headers and their keys must not be null, found a null in row 1",
    )
    large = pa.array([b"a", b"b" * 500])
    assert "a batch with a single record has 5" in str(check(lambda: encode(None, large, None, times, options=options)))


def test_modes_reject_unsupported_arrays() -> None:
    from sparklog.format.kernels.hash_kernels import murmur2_cells

    table = np.zeros(6, np.int64)
    for wrong in (np.zeros(3, np.int64), np.zeros(6, np.int32)[::2], np.zeros((2, 2), np.int32)):
        with pytest.raises(TypeError):
            murmur2_cells(table, 1, wrong)
        with pytest.raises(TypeError):
            murmur2_cells.interpreted(table, 1, wrong)


def test_few_records_are_interpreted() -> None:
    choice = Choice(100)
    assert [choice.compiled(40), choice.compiled(40), choice.compiled(40), choice.compiled(1)] == [
        False,
        False,
        True,
        True,
    ]
    assert Choice(100).compiled(101)
    choice = Choice(100)
    choice.load()
    assert choice.compiled(0)


def test_kernels_are_interpreted_while_they_are_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparklog.format.kernels.hash_kernels import murmur2_cells
    from sparklog.format.kernels.kernel_choice import Kernel, preload

    choice, during = Choice(0), list[bool]()

    def load(_: Kernel) -> None:
        choice.load()
        during.append(choice.compiled(1))
        raise MemoryError

    monkeypatch.setattr(kernel_choice, "choice", choice)
    monkeypatch.setattr(Kernel, "load", load)
    with pytest.raises(MemoryError):
        preload(murmur2_cells)
    assert during == [False]
    assert choice.compiled(1)


PROGRAM = """
import sys
import numpy as np, pyarrow as pa
from sparklog.format.kernels.kernel_choice import LOADING_IS_WORTH
from sparklog.format.encode import EncodeOptions, encode
def write(rows):
    encode(None, pa.array([b"v"] * rows), None, np.zeros(rows, np.int64), options=EncodeOptions("none"))
    return "llvmlite" in sys.modules
print(write(10), write(1000), write(LOADING_IS_WORTH), write(10))
"""


def test_compiled_kernels_are_loaded_only_for_many_records() -> None:
    warm_up()
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False", "True", "True"], done.stderr


def test_kernels_are_interpreted_in_these_tests() -> None:
    def work() -> bool:
        choice = kernel_choice.choice
        encode(None, pa.array([b"v"]), None, np.zeros(1, np.int64), options=EncodeOptions(CODEC_NAMES[0]))
        return choice.left > 0

    assert both_ways(work) == (True, False)
    with interpreted():
        assert not kernel_choice.choice.compiled(1)
