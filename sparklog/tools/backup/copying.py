"""Copy data files concurrently and atomically.

The bytes are checked against the commit while they are copied: the size, the CRC-32C of each slice, the footer and its
CRC-32C, and the CRC-32C of the index files. On a mismatch, the bytes are read again. If the mismatch persists, an error
that contains the file and position is raised, and no part of the file is written to the target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from sparklog.errors import BadRequest, Corrupt, NotFound, Unavailable
from sparklog.format import crc32c
from sparklog.format.append_file import decode_footer
from sparklog.format.checksums import SUFFIXES, index_crc
from sparklog.format.key_filter import decode_filters
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.create_object import create_or_read, read_if_there
from sparklog.log.journal.names import LOG_FOLDER, filter_path, is_commit
from sparklog.log.topic.inventory import ReferencedFile
from sparklog.storage import LocalStore
from sparklog.storage.store import Store

T = TypeVar("T")
CHUNK_BYTES = 4 << 20
AT_ONCE = 4
"""Default number of files to copy concurrently. A larger number would not be faster on a single disk."""
Progress = Callable[[int, int, int, int], None]
"""A function that is called with the number of copied files, all files, copied bytes and all bytes."""
RENEW_MS = 60_000
"""Interval at which a copying run renews its leases and its mark."""


def silent(files: int, of_files: int, nbytes: int, of_nbytes: int) -> None:
    """Do nothing. This callback is used if no progress is reported."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options for copying: hard links on the same disk, the number of concurrent files, and the progress callback."""

    link: bool = False
    at_once: int = AT_ONCE
    progress: Progress = silent
    env: Env = SYSTEM


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy, and its key in the target."""

    file: ReferencedFile
    to: str


@dataclass(frozen=True, slots=True)
class Copied:
    """The number of copied objects and bytes. `linked` is the number of bytes in hard-linked files."""

    objects: int = 0
    nbytes: int = 0
    linked: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(self.objects + other.objects, self.nbytes + other.nbytes, self.linked + other.linked)


def copy_all(
    source: Store,
    target: Store,
    files: Iterable[FileCopy],
    options: CopyOptions,
    renew: Callable[[], None],
    on_missing: Callable[[FileCopy], None] | None = None,
) -> Copied:
    """Copy the files that do not exist in the target, in the given order.

    Args:
        renew: called every minute.
        on_missing: called for each missing file; if None, a missing file raises `NotFound`.

    Raises:
        Corrupt: If a file is corrupt. The error is raised after all other files have been copied.
    """
    files = list(files)
    present = listed(target, (file.to for file in files))
    # An earlier run may have stopped before it copied the index files of a segment, so check the index files of
    # existing segments.
    new = [copy for copy in files if copy.to not in present or copy.file.sealed]
    missing_bytes = sum(copy.file.size for copy in new if copy.to not in present)
    renewed_ms = options.env.boot_ms()
    total = Copied()
    corrupt: list[Corrupt] = []

    def copy_one(copy: FileCopy) -> Copied | Corrupt | None:
        try:
            return _copy(source, target, copy, present, options)
        except NotFound:
            if on_missing is None:
                raise
            return None
        except Corrupt as error:
            return error

    results = zip(new, _map_concurrently(copy_one, new, options.at_once), strict=True)
    for files_done, (file, result) in enumerate(results, 1):
        if isinstance(result, Copied):
            total += result
            options.progress(files_done, len(new), total.nbytes + total.linked, missing_bytes)
            if options.env.boot_ms() - renewed_ms > RENEW_MS:
                renewed_ms = options.env.boot_ms()
                renew()
        elif result is None and on_missing is not None:
            on_missing(file)
        elif isinstance(result, Corrupt):
            corrupt.append(result)
    if corrupt:
        first = corrupt[0]
        more = f" ({len(corrupt) - 1} more corrupt files)" if len(corrupt) > 1 else ""
        raise Corrupt(f"{first.message}{more}", file=first.file, position=first.position, offset=first.offset)
    return total


def _map_concurrently(function: Callable[[FileCopy], T], files: Iterable[FileCopy], threads: int) -> Iterator[T]:
    if threads <= 1:
        yield from map(function, files)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="sparklog-copy") as pool:
        try:
            yield from pool.map(function, files)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _copy(source: Store, target: Store, copy: FileCopy, present: Mapping[str, int], options: CopyOptions) -> Copied:
    file, done = copy.file, Copied()
    if file.sealed:
        done += _copy_indexes(source, target, copy, present, options.env)
    if file.filtered:
        done += _copy_filters(source, target, copy, present, options.env)
    if copy.to in present:
        if present[copy.to] != file.size:
            found = f"{target.location} has {present[copy.to]} bytes of this file, expected {file.size}"
            raise Corrupt(f"{found}; delete the file in the target", file=copy.to)
        return done
    try:
        return done + _copy_data(source, target, copy, options.link)
    except Corrupt:
        # Read the file again, because a bit may have been flipped during the transfer.
        return done + _copy_data(source, target, copy, options.link)


def _copy_data(source: Store, target: Store, copy: FileCopy, link: bool) -> Copied:
    size = copy.file.size
    if link and _linked(source, target, copy):
        try:
            for _ in _checked(source, copy.file):
                pass
        except BaseException:
            target.delete(copy.to)
            raise
        return Copied(1, 0, size)
    writer = target.writer(copy.to)
    try:
        for data in _checked(source, copy.file):
            writer.write(data)
        writer.close()
    except Unavailable:
        writer.discard()
        info = target.stat(copy.to)
        if info is None or info.size != size:
            raise
        # Another run has copied the file in the meantime, or the response to this run was lost.
        return Copied()
    except BaseException:
        writer.discard()
        raise
    return Copied(1, size)


def _linked(source: Store, target: Store, copy: FileCopy) -> bool:
    """Create a hard link to the file. Return False if the file cannot be linked, for example because it is on another
    disk.
    """
    if not isinstance(source, LocalStore) or not isinstance(target, LocalStore):
        return False
    path = os.path.join(source.location, copy.file.key)
    try:
        return target.link(path, os.stat(path).st_ino, copy.to)
    except OSError:
        return False


def _checked(source: Store, file: ReferencedFile) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks. Raises `Corrupt` at the first slice that does not match the commit."""
    slices = sorted({(claim.position, claim.size, claim.crc, claim.base) for claim in file.claims})
    sums = [0] * len(slices)
    footer: list[bytes] = []
    start = first = 0
    while start < file.size:
        data = source.get(file.key, start, min(CHUNK_BYTES, file.size - start))
        if not data:
            break
        end = start + len(data)
        for i in range(first, len(slices)):
            position, size, crc, base = slices[i]
            if position >= end:
                break
            low, high = max(position, start), min(position + size, end)
            if high > low:
                sums[i] = crc32c.crc32c(memoryview(data)[low - start : high - start], sums[i])
            if position + size <= end:
                if sums[i] != crc:
                    raise Corrupt(
                        "the CRC-32C of a slice does not match the commit; restore the file, or move the log start "
                        "beyond the slice",
                        file=file.key,
                        position=position,
                        offset=base,
                    )
                first = i + 1
        if end > file.size - file.footer_length:
            footer.append(data[max(0, file.size - file.footer_length - start) :])
        start = end
        yield data
    longer = start == file.size and bool(source.get(file.key, start, 1))
    if start != file.size or longer:
        message = f"expected {file.size} bytes, found {'more' if longer else start}"
        raise Corrupt(message, file=file.key, position=start)
    if file.footer_length:
        decode_footer(b"".join(footer), file_size=file.size, file=file.key)


def _copy_indexes(source: Store, target: Store, copy: FileCopy, present: Mapping[str, int], env: Env) -> Copied:
    file, names = copy.file, [f"{copy.to.removesuffix('log')}{suffix}" for suffix in SUFFIXES]
    if copy.to in present and all(name in present for name in names[:2]):
        return Copied()
    for again in (True, False):
        contents = [read_if_there(source, file.index_key(suffix)) for suffix in SUFFIXES]
        if not file.index_crc or index_crc(*(data or b"" for data in contents)) == file.index_crc:
            break
        if None in contents[:2]:
            raise NotFound(f"the index files of {file.key} are missing")
        if not again:
            raise Corrupt(
                "the index files of the segment do not match the commit; restore them or run sparklog repair",
                file=file.key,
            )
    done = Copied()
    for name, data in zip(names, contents, strict=True):
        if data is not None and name not in present:
            done += _create(target, name, data, env)
    return done


def _copy_filters(source: Store, target: Store, copy: FileCopy, present: Mapping[str, int], env: Env) -> Copied:
    """Copy the key filters of a file. Missing or corrupt filters are skipped, because lookups work without them."""
    name = filter_path(copy.to)
    data = None if name in present else read_if_there(source, filter_path(copy.file.key))
    if data is None:
        return Copied()
    try:
        decode_filters(data)
    except (Corrupt, BadRequest):
        return Copied()
    return _create(target, name, data, env)


def _create(target: Store, key: str, data: bytes, env: Env) -> Copied:
    return Copied(1, len(data)) if create_or_read(target, key, data, env) is None else Copied()


def listed(store: Store, keys: Iterable[str]) -> dict[str, int]:
    """Return the sizes of the existing data files of the topics in `keys`. If `keys` contains a commit, commits are
    also returned.
    """
    folders = set()
    for key in keys:
        owner, _, path = key.partition("/")
        folders |= {f"{owner}/{kind}/" for kind in ("append", "sealed")}
        if is_commit(path):
            folders.add(f"{owner}/{LOG_FOLDER}/0")
    return {info.key: info.size for folder in sorted(folders) for info in store.list(folder)}
