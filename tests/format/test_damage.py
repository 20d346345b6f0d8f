"""Corrupt and malicious batches return correct records or raise `Corrupt`, without crashes, hangs or memory spikes."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.control import control_types
from sparklog.format.decode import decode
from sparklog.format.record_batch import BatchHeader, DataLocation
from tests.format.batch_samples import ALL, CODEC_NAMES, GOLDEN_BATCH, decode_all, encode_sample, rows
from tests.support.forked import outcome


def samples() -> list[bytes]:
    """Return single batches to corrupt."""
    batches = [GOLDEN_BATCH]
    for codec in CODEC_NAMES:
        for count, value_bytes in ((1, 20), (12, 30), (150, 300)):
            batches.append(encode_sample(count, codec, batch_bytes=1 << 20, value_bytes=value_bytes).data)
    return batches


def resealed(batch: bytes) -> bytes:
    """Return the batch with a correct size and CRC, so that the corruption reaches the decoder."""
    header = scan_headers(batch, whole=False)
    if len(header) != 1:
        return batch
    return header.row(0).pack(batch[61 : int(header.size[0])])


def damaged(batch: bytes, chance: random.Random) -> bytes:
    """Change one to four bytes, or remove, repeat or overwrite a range; usually recompute size and CRC."""
    data = bytearray(batch)
    for _ in range(chance.randint(1, 4)):
        position = chance.choice([chance.randrange(len(data)), chance.randrange(21, min(len(data), 90))])
        kind = chance.randrange(6)
        if kind == 0:
            data[position] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[position] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            data[position : position + 5] = chance.choice(
                [b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 5]
            )
        elif kind == 3:
            del data[position : position + chance.randint(1, 9)]
        elif kind == 4:
            data[position:position] = data[position : position + chance.randint(1, 9)]
        else:
            data[position] = chance.randrange(256)
        if len(data) < 62:
            data += bytes(62)
    found = bytes(data)
    if chance.random() < 0.85:
        length = (len(found) - 12).to_bytes(4, "big")
        found = resealed(found[:8] + length + found[12:16] + b"\x02" + found[17:])
    return found


def check(batch: bytes) -> bool:
    """Decode a batch in all ways, check that the results are valid and equal, and return True if it has records."""
    headers = scan_headers(batch, whole=False)
    try:
        control_types(batch, headers)
        columns = decode(batch, headers, columns=ALL)
    except Corrupt as error:
        if error.position is None:
            raise AssertionError("the error names no place") from error
        return False
    assert len(crc_failures(batch, headers)) == 0
    for array in (columns.key, columns.value, columns.headers):
        assert array is not None
        array.validate(full=True)
        assert len(array) == len(columns)
    assert len(columns) == int(headers.count.sum())
    few = decode(batch, headers, columns=("value",))
    assert few.value == columns.value
    return len(columns) > 0


def fuzz(seed: int, rounds: int) -> tuple[int, int]:
    chance = random.Random(seed)
    batches = samples()
    kept = sum(check(damaged(chance.choice(batches), chance)) for _ in range(rounds))
    return kept, rounds - kept


def test_mutated_batches() -> None:
    kept, refused = fuzz(seed=1, rounds=600)
    assert kept > 20
    assert refused > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_mutated_batches(seed: int) -> None:
    kept, refused = fuzz(seed=1000 + seed, rounds=2500)
    assert kept > 100
    assert refused > 1000


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_every_single_bit(codec: str) -> None:
    batch = encode_sample(3, codec, value_bytes=10).data
    whole = rows(decode_all(batch))
    same = 0
    for position in range(len(batch) * 8):
        data = bytearray(batch)
        data[position >> 3] ^= 1 << (position & 7)
        headers = scan_headers(data, whole=False)
        if len(headers) == 0:
            assert headers.stop in ("partial", "corrupt")
            continue
        try:
            found = rows(decode(data, headers, columns=ALL))
        except Corrupt:
            continue
        # Only base offset and leader epoch are not covered by the CRC and leave a batch readable.
        assert position >> 3 < 16
        assert [row[1:] for row in found] == [row[1:] for row in whole]
        same += 1
    assert 32 <= same <= 96


def test_damaged_fixtures(fixtures: Path) -> None:
    ends = set()
    for path in sorted((fixtures / "damaged").rglob("*.log")):
        data = path.read_bytes()
        headers = scan_headers(data, whole=False)
        ends.add(headers.stop)
        try:
            decode(data, headers, columns=ALL)
        except Corrupt as error:
            ends.add("crc" if "CRC-32C" in error.message else "records")
    assert {"end", "partial", "crc"} <= ends


def test_arbitrary_bytes_as_records() -> None:
    chance = random.Random(5)
    refused = 0
    for _ in range(300):
        payload = chance.randbytes(chance.randrange(200))
        count = chance.choice([1, 2, 5, 1000, 2**31 - 1])
        header = BatchHeader(0, 2**31 - 1, count, 0, 0, attributes=chance.randrange(5))
        refused += not check(header.pack(payload))
    assert refused > 290


HOSTILE = """
    import resource, sys
    from dataclasses import replace
    from sparklog.errors import Corrupt
    from sparklog.format.batch_scan import scan_headers
    from sparklog.format.record_batch import BatchHeader, CODECS
    from sparklog.format.decode import decode
    from sparklog.format.kernels.warm import warm_up
    from tests.format.test_compression import bomb
    from tests.format.batch_samples import ALL, GOLDEN_BATCH, GOLDEN_HEADER, GOLDEN_RECORDS
    warm_up()
    decode(GOLDEN_BATCH, scan_headers(GOLDEN_BATCH), columns=ALL)
    used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    batches = [
        replace(GOLDEN_HEADER, count=2**31 - 1, last_offset_delta=2**31 - 1).pack(GOLDEN_RECORDS),
        replace(GOLDEN_HEADER, count=2**31 - 1, last_offset_delta=2**31 - 1, attributes=4).pack(bomb("zstd", 1 << 20)),
        replace(GOLDEN_HEADER, count=1).pack(bytes.fromhex("feffffff0f") + bytes(50)),
        replace(GOLDEN_HEADER, count=1).pack(bytes.fromhex("50000000feffffff0f") + bytes(60)),
        replace(GOLDEN_HEADER, count=1).pack(bytes.fromhex("500000000101feffffff0f") + bytes(60)),
        GOLDEN_BATCH[:8] + b"\\x7f\\xff\\xff\\xff" + GOLDEN_BATCH[12:],
    ]
    for number, codec in enumerate(CODECS[1:], 1):
        batches.append(replace(GOLDEN_HEADER, attributes=number).pack(bomb(codec, 1 << 30)))
    for number, batch in enumerate(batches):
        try:
            decode(batch, scan_headers(batch), columns=ALL)
        except Corrupt as error:
            print("corrupt", number, error.message)
        else:
            sys.exit(f"batch {number} was accepted")
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to limit memory")
def test_excessive_sizes_do_not_allocate_memory() -> None:
    """Counts and lengths of 2^31 - 1 and streams of 1 GiB of zeros, in a process limited to 700 MiB more."""
    program = textwrap.dedent(HOSTILE).replace("ROOM", str(700 << 20))
    repository = Path(__file__).parents[2]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("corrupt") == 10


def test_decompression_bomb_reports_its_position() -> None:
    from tests.format.test_compression import bomb

    good = encode_sample(50, "zstd").data
    bad = replace(scan_headers(good).row(0), base_offset=50).pack(bomb("zstd", 1 << 29))
    with pytest.raises(Corrupt, match="at most") as raised:
        decode_all(good + bad, location=DataLocation("x.log", 7))
    assert (raised.value.file, raised.value.position, raised.value.offset) == ("x.log", 7 + len(good), 50)


GUARDED = """
    import ctypes, mmap, random
    import numpy as np, pyarrow as pa
    from sparklog.format.decode import decode
    from sparklog.format.encode import EncodeOptions, encode
    from sparklog.format.batch_scan import scan_headers
    from tests.format.test_damage import check, damaged, samples
    from tests.format.batch_samples import decode_all, sample, rows

    ROOM, PAGE = 1 << 20, mmap.PAGESIZE
    region = mmap.mmap(-1, ROOM + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + ROOM), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError("mprotect failed")

    def at_the_end(data):
        "The bytes so that the next one behind them cannot be read."
        place = (ctypes.c_uint8 * len(data)).from_address(start + ROOM - len(data))
        ctypes.memmove(place, bytes(data), len(data))
        return np.frombuffer(place, np.uint8)

    chance = random.Random(9)
    batches = samples()
    for _ in range(400):
        check(at_the_end(damaged(chance.choice(batches), chance)))
    for size in (1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 5000):
        cells = at_the_end(bytes(size))
        offsets = pa.array([0, size], pa.int32()).buffers()[1]
        value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(cells)])
        data = encode(None, value, None, np.array([1]), options=EncodeOptions("none")).data
        assert decode_all(at_the_end(data)).value.equals(value)
    print("survived")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("left", [-1, 1 << 60], ids=["compiled", "interpreted"])
def test_kernels_do_not_read_beyond_their_input(left: int) -> None:
    """The input ends where readable memory ends: reading one more byte would crash the process."""
    chosen = f"from sparklog.format.kernels.kernel_choice import choice\nchoice.left = {left}\n"
    assert outcome(chosen + textwrap.dedent(GUARDED)) == (0, "survived\n")
