"""Copy data files, several at once, each whole or not at all.

What a commit says of a file is held against the bytes as they pass: size, the CRC-32C of each slice, the footer's own,
and that of the index files. Bytes that do not match are read once more, then they are an error that names the place,
and nothing of the file is left at the other end.
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
from sparklog.log.topic.inventory import NamedFile
from sparklog.storage import LocalStore
from sparklog.storage.store import Store

T = TypeVar("T")
CHUNK = 4 << 20
AT_ONCE = 4
"""Files copied at once: more wait for the same disk."""
Progress = Callable[[int, int, int, int], None]
"""Files done, files in all, bytes done, bytes in all."""
LOOK_MS = 60_000
"""How often a run that copies looks after its holds and its mark."""


def silent(files: int, of_files: int, nbytes: int, of_nbytes: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of a run that copies: hard links where both are on one disk, files at once, progress."""

    link: bool = False
    at_once: int = AT_ONCE
    progress: Progress = silent
    env: Env = SYSTEM


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy, and the key that it gets."""

    file: NamedFile
    to: str


@dataclass(frozen=True, slots=True)
class Copied:
    """Objects and bytes that were copied; `linked`: bytes of files that became hard links instead."""

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
    look: Callable[[], None],
    lost: Callable[[FileCopy], None] | None = None,
) -> Copied:
    """Copy the files that the target does not have, in their order; `look` is called every minute.

    `lost` takes the files that are missing, where that is no error. Raises `Corrupt` for damage, after all others have
    been copied, `NotFound` for a missing file.
    """
    files = list(files)
    present = listed(target, (file.to for file in files))
    # A segment without its index files is copied again: a run may have died between the two.
    new = [item for item in files if item.to not in present or item.file.sealed]
    missing_bytes = sum(item.file.size for item in new if item.to not in present)
    looked_ms = options.env.boot_ms()
    total = Copied()
    damage: list[Corrupt] = []

    def one(file: FileCopy) -> Copied | Corrupt | None:
        try:
            return _copy(source, target, file, present, options)
        except NotFound:
            if lost is None:
                raise
            return None
        except Corrupt as error:
            return error

    for files_done, (file, copied) in enumerate(zip(new, _spread(one, new, options.at_once), strict=True), 1):
        if isinstance(copied, Copied):
            total += copied
            options.progress(files_done, len(new), total.nbytes + total.linked, missing_bytes)
            if options.env.boot_ms() - looked_ms > LOOK_MS:
                looked_ms = options.env.boot_ms()
                look()
        elif copied is None and lost is not None:
            lost(file)
        elif isinstance(copied, Corrupt):
            damage.append(copied)
    if damage:
        first = damage[0]
        more = f" ({len(damage) - 1} more files are damaged)" if len(damage) > 1 else ""
        raise Corrupt(f"{first.message}{more}", file=first.file, position=first.position, offset=first.offset)
    return total


def _spread(one: Callable[[FileCopy], T], files: Iterable[FileCopy], at_once: int) -> Iterator[T]:
    if at_once <= 1:
        yield from map(one, files)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="sparklog-copy") as pool:
        try:
            yield from pool.map(one, files)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _copy(source: Store, target: Store, item: FileCopy, present: Mapping[str, int], options: CopyOptions) -> Copied:
    file, done = item.file, Copied()
    if file.sealed:
        done += _copy_indexes(source, target, item, present, options.env)
    if file.filtered:
        done += _copy_filters(source, target, item, present, options.env)
    if item.to in present:
        if present[item.to] != file.size:
            message = f"{target.location} holds {present[item.to]} bytes of it, expected {file.size}: delete it there"
            raise Corrupt(message, file=item.to)
        return done
    try:
        return done + _copy_data(source, target, item, options.link)
    except Corrupt:
        # A bit that flipped on the way: read again before calling it damaged.
        return done + _copy_data(source, target, item, options.link)


def _copy_data(source: Store, target: Store, item: FileCopy, link: bool) -> Copied:
    size = item.file.size
    if link and _linked(source, target, item):
        try:
            for _ in _checked(source, item.file):
                pass
        except BaseException:
            target.delete(item.to)
            raise
        return Copied(1, 0, size)
    writer = target.writer(item.to)
    try:
        for data in _checked(source, item.file):
            writer.write(data)
        writer.close()
    except Unavailable:
        writer.discard()
        info = target.stat(item.to)
        if info is None or info.size != size:
            raise
        # Another run has copied it meanwhile, or our own answer was lost.
        return Copied()
    except BaseException:
        writer.discard()
        raise
    return Copied(1, size)


def _linked(source: Store, target: Store, item: FileCopy) -> bool:
    """Make a hard link of the file. False if that is not possible, as from one disk to another."""
    if not isinstance(source, LocalStore) or not isinstance(target, LocalStore):
        return False
    path = os.path.join(source.location, item.file.key)
    try:
        return target.link(path, os.stat(path).st_ino, item.to)
    except OSError:
        return False


def _checked(source: Store, file: NamedFile) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks; `Corrupt` at the first that is not what the commit says."""
    slices = sorted({(claim.position, claim.size, claim.crc, claim.base) for claim in file.claims})
    sums = [0] * len(slices)
    footer: list[bytes] = []
    start = first = 0
    while start < file.size:
        data = source.get(file.key, start, min(CHUNK, file.size - start))
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
                        "bytes are not what the commit says: restore the file, or move the log start beyond it",
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


def _copy_indexes(source: Store, target: Store, item: FileCopy, present: Mapping[str, int], env: Env) -> Copied:
    file, names = item.file, [f"{item.to.removesuffix('log')}{suffix}" for suffix in SUFFIXES]
    if item.to in present and all(name in present for name in names[:2]):
        return Copied()
    for again in (True, False):
        contents = [read_if_there(source, file.index_key(suffix)) for suffix in SUFFIXES]
        if not file.index_crc or index_crc(*(data or b"" for data in contents)) == file.index_crc:
            break
        if None in contents[:2]:
            raise NotFound(f"the index files beside {file.key} are missing")
        if not again:
            message = "the index files beside it are not what the commit says: restore them, or seal the segment again"
            raise Corrupt(message, file=file.key)
    done = Copied()
    for name, data in zip(names, contents, strict=True):
        if data is not None and name not in present:
            done += _create(target, name, data, env)
    return done


def _copy_filters(source: Store, target: Store, item: FileCopy, present: Mapping[str, int], env: Env) -> Copied:
    """Copy the filters of keys beside a file. Without them, or where they are damaged, it is just read more often."""
    name = filter_path(item.to)
    data = None if name in present else read_if_there(source, filter_path(item.file.key))
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
    """Return the sizes of the data files in the folders of the topics of `keys`; of commits only where one is a key."""
    folders = set()
    for key in keys:
        owner, _, path = key.partition("/")
        folders |= {f"{owner}/{kind}/" for kind in ("append", "sealed")}
        if is_commit(path):
            folders.add(f"{owner}/{LOG_FOLDER}/0")
    return {info.key: info.size for folder in sorted(folders) for info in store.list(folder)}
