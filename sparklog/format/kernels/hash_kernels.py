"""Kernels for CRC-32C, murmur2, murmur3 and SipHash.

**CRC-32Cs** are combined, or adjusted for a change of eight bytes, without reading the data. If CRCs are polynomials
over GF(2) in reflected form, crc(A + B) = crc(A) * x^(8 len(B)) mod P, plus crc(B). This is the method of zlib's
`crc32_combine` with the Castagnoli polynomial. For data of equal length, crc(A xor D) = crc(A) plus D * x^32 mod P,
because the initial and the final inversion cancel out.

**murmur2** is Kafka's variant, for the cells of a binary column, in int64 arithmetic masked to 32 bits.

**murmur3** is the 32-bit variant for x86 with seed 0, which determines the bucket of a value in an Iceberg table.

**SipHash-2-4** computes 128 bits for each key. Four adjacent keys with the same number of words, which is common, are
hashed together. Bounds: each key is compared with the bounds of the data before it is read. Its last word is read byte
by byte only if eight bytes would extend beyond the data.

**Key filters** (`sparklog.format.key_filter`) are filled from these hashes.
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.encode_kernels import cell
from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    BYTES,
    BYTES_IN,
    INT,
    INT32,
    INT32_IN,
    INT64,
    INT64_IN,
    VOID,
    address,
    helper,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    siphash,
    store_i32,
    store_i64,
)

POLYNOMIAL = 0x82F63B78
ONE = 1 << 31
"""x^0. In reflected form, the highest bit is the lowest power."""


def _powers() -> tuple[int, ...]:
    """Return x^(8 * 2^n) for n up to 62."""
    powers = [ONE >> 8]
    for _ in range(62):
        powers.append(multiply(powers[-1], powers[-1]))
    return tuple(powers)


@helper
def multiply(a: int, b: int) -> int:
    # The bits are random, so a multiplication with each bit takes less time than branches.
    product = 0
    for shift in range(31, -1, -1):
        product ^= b * (a >> shift & 1)
        b = (b >> 1) ^ POLYNOMIAL * (b & 1)
    return product


POWERS = _powers()


@helper
def shifted(crc: int, length: int) -> int:
    """Return crc * x^(8 length), which is the effect of `length` further bytes on a CRC."""
    bit = 0
    while length > 0:
        if length & 1:
            crc = multiply(POWERS[bit], crc)
        length >>= 1
        bit += 1
    return crc


@kernel(INT(INT64_IN, INT64_IN))
def join_crcs(crcs: Any, lengths: Any) -> int:
    """Return the CRC-32C of concatenated parts, given the CRC-32C and the length of each part."""
    total = 0
    for part in range(len(crcs)):
        total = shifted(total, lengths[part]) ^ crcs[part]
    return total


@kernel(VOID(INT64, INT64_IN, INT64_IN))
def change_crcs(crcs: Any, changes: Any, following: Any) -> None:
    """Update the CRC-32Cs of several pieces of data after a big-endian int64 in each piece was xor-ed with `changes`.

    `following` is the number of bytes after the int64.
    """
    for batch in range(len(crcs)):
        state = 0
        for byte in range(8):
            state ^= (changes[batch] >> (56 - 8 * byte)) & 0xFF
            for _ in range(8):
                state = (state >> 1) ^ POLYNOMIAL if state & 1 else state >> 1
        crcs[batch] ^= shifted(state, following[batch])


WORD_MASK = 0xFFFFFFFF
MURMUR2_SEED = 0x9747B28C
MURMUR2_M = 0x5BD1E995


@helper
def murmur2_bytes(cursor: int, length: int) -> int:
    state = (MURMUR2_SEED ^ length) & WORD_MASK
    for _ in range(length >> 2):
        word = (load_u32(cursor) * MURMUR2_M) & WORD_MASK
        word = ((word ^ (word >> 24)) * MURMUR2_M) & WORD_MASK
        state = ((state * MURMUR2_M) & WORD_MASK) ^ word
        cursor += 4
    remaining = length & 3
    if remaining > 2:
        state ^= load_u8(cursor + 2) << 16
    if remaining > 1:
        state ^= load_u8(cursor + 1) << 8
    if remaining > 0:
        state = ((state ^ load_u8(cursor)) * MURMUR2_M) & WORD_MASK
    state = ((state ^ (state >> 13)) * MURMUR2_M) & WORD_MASK
    return state ^ (state >> 15)


@kernel(VOID(INT64_IN, INT, INT32))
def murmur2_cells(column: Any, partitions: int, out: Any) -> None:
    """Write the murmur2 of each cell as int32 if `partitions` is 0. Otherwise, write the partition of each cell.

    A null cell has murmur2 0 and partition -1.
    """
    offsets, wide, data, valid, first = column[0], column[1], column[2], column[4], column[5]
    out_at = address(out)
    for row in range(len(out)):
        length, source = cell(offsets, wide, data, valid, first + row)
        if length < 0:
            value = 0 if partitions == 0 else -1
        else:
            value = murmur2_bytes(source, length)
            if partitions != 0:
                value = (value & 0x7FFFFFFF) % partitions
        store_i32(out_at + 4 * row, value)


@helper
def murmur3_mix(word: int) -> int:
    word = (word * 0xCC9E2D51) & WORD_MASK
    return (((word << 15) | (word >> 17)) * 0x1B873593) & WORD_MASK


@helper
def murmur3_bytes(cursor: int, length: int) -> int:
    state = 0
    for _ in range(length >> 2):
        state ^= murmur3_mix(load_u32(cursor))
        state = (((state << 13) | (state >> 19)) * 5 + 0xE6546B64) & WORD_MASK
        cursor += 4
    word = 0
    for index in range(length & 3):
        word |= load_u8(cursor + index) << (8 * index)
    state ^= murmur3_mix(word) ^ length
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & WORD_MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & WORD_MASK
    return state ^ (state >> 16)


@kernel(VOID(INT64_IN, INT, INT32))
def murmur3_buckets(column: Any, buckets: int, out: Any) -> None:
    """Write the bucket of each cell, or -1 for a null cell."""
    offsets, wide, data, valid, first = column[0], column[1], column[2], column[4], column[5]
    out_at = address(out)
    for row in range(len(out)):
        length, source = cell(offsets, wide, data, valid, first + row)
        bucket = -1 if length < 0 else (murmur3_bytes(source, length) & 0x7FFFFFFF) % buckets
        store_i32(out_at + 4 * row, bucket)


@helper
def last_word(cursor: int, length: int, data_end: int) -> int:
    remaining = length & 7
    word: int = (length & 0xFF) << 56
    if cursor + 8 <= data_end:
        word |= load_i64(cursor) & ((1 << (8 * remaining)) - 1)
    else:
        for index in range(remaining):
            word |= load_u8(cursor + index) << (8 * index)
    return word


@helper
def last_word_of(starts_at: int, lengths_at: int, index: int, data_at: int, data_end: int) -> int:
    """Return the last word of a key."""
    length = load_i32(lengths_at + 4 * index)
    return last_word(data_at + load_i64(starts_at + 8 * index) + (length & ~7), length, data_end)


@helper
def have_equal_words(starts_at: int, lengths_at: int, nbytes: int) -> bool:
    """Return True if four keys are within the data and have the same number of words."""
    words = load_i32(lengths_at) >> 3
    equal = words >= 0
    for index in range(4):
        start, length = load_i64(starts_at + 8 * index), load_i32(lengths_at + 4 * index)
        equal = equal and length >> 3 == words and 0 <= start <= nbytes - length
    return equal


@kernel(INT(BYTES_IN, INT64_IN, INT32_IN, INT, INT, INT64))
def siphash_keys(data: Any, starts: Any, lengths: Any, key_low: int, key_high: int, out: Any) -> int:
    """Write the two words of the hash of each key to `out`, or zeros for a negative length.

    Returns the index of the first key that is not within the data, or -1 if all keys are within the data.
    """
    data_at, starts_at, lengths_at, out_at = address(data), address(starts), address(lengths), address(out)
    data_end, count = data_at + len(data), len(starts)
    index = 0
    while index < count:
        start_at, length_at, to = starts_at + 8 * index, lengths_at + 4 * index, out_at + 16 * index
        start, length = load_i64(start_at), load_i32(length_at)
        if length < 0:
            store_i64(to, 0)
            store_i64(to + 8, 0)
            index += 1
        elif start < 0 or length > len(data) - start:
            return index
        elif index + 4 <= count and have_equal_words(start_at, length_at, len(data)):
            cursors = (
                data_at + start,
                data_at + load_i64(start_at + 8),
                data_at + load_i64(start_at + 16),
                data_at + load_i64(start_at + 24),
            )
            lasts = (
                last_word_of(start_at, length_at, 0, data_at, data_end),
                last_word_of(start_at, length_at, 1, data_at, data_end),
                last_word_of(start_at, length_at, 2, data_at, data_end),
                last_word_of(start_at, length_at, 3, data_at, data_end),
            )
            siphash(cursors, length >> 3, lasts, key_low, key_high, to)
            index += 4
        else:
            last = last_word_of(start_at, length_at, 0, data_at, data_end)
            siphash((data_at + start,), length >> 3, (last,), key_low, key_high, to)
            index += 1
    return -1


SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
"""The salts of Parquet's Bloom filters."""


@kernel(VOID(INT64_IN, INT, BYTES))
def add_to_filter(hashes: Any, blocks: int, bits: Any) -> None:
    """Set the bits of hashes, which have two words each, in a filter of `blocks` blocks of 32 bytes."""
    hashes_at, bits_at = address(hashes), address(bits)
    for row in range(len(hashes) >> 1):
        word = load_i64(hashes_at + 16 * row)
        low = word & 0xFFFFFFFF
        block = bits_at + 32 * ((((word >> 32) & 0xFFFFFFFF) * blocks) >> 32)
        for which in range(8):
            bit = ((low * SALTS[which]) & 0xFFFFFFFF) >> 27
            store_i32(block + 4 * which, load_u32(block + 4 * which) | (1 << bit))
