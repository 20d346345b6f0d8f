"""The data files that versions of a topic name, and copying them: several at once, each whole or not there.

What a commit says of a file is held against the bytes as they pass: size, the CRC-32C of each slice, the footer's own,
and that of the index files. Bytes that do not match are read once more, then they are an error that names the place,
and nothing of the file is left at the other end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from sparklog.errors import BadRequest, Corrupt, NotFound, Unavailable
from sparklog.format import crc32c
from sparklog.format.append_file import decode_footer
from sparklog.format.checksums import SUFFIXES, index_crc
from sparklog.format.key_filter import decode_filters
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.journal.create_object import create_or_read, read_if_there
from sparklog.log.journal.names import LOG_FOLDER, file_key, filter_path, is_commit
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.topic_state import EMPTY
from sparklog.log.topic.cloning import file_slices
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


class SliceBytes(NamedTuple):
    """A slice in a file: where it is, its CRC-32C, and its first offset in the log."""

    position: int
    size: int
    crc: int
    base: int


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy: from `key` to the key `to`, and what must be true of it. `footer` 0: a sealed segment.

    `index_crc`: of the files beside a sealed segment, 0 if that is not known. `filtered`: it has filters of keys.
    """

    key: str
    to: str
    size: int
    footer: int
    pieces: tuple[SliceBytes, ...]
    index_crc: int = 0
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """Objects and bytes that were copied; `linked`: bytes of files that became hard links instead."""

    objects: int = 0
    nbytes: int = 0
    linked: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(self.objects + other.objects, self.nbytes + other.nbytes, self.linked + other.linked)


def data_file(topic: str, file: FileSlices, to: str | None = None) -> FileCopy:
    """Return a file as a commit of `topic` names it; `to`: the key that it gets, None: the same."""
    key = file_key(topic, file.path)
    pieces = tuple(
        sorted(SliceBytes(*item) for item in zip(file.starts, file.nbytes, file.crc, file.base, strict=True))
    )
    crc = file.index_crc[0] if file.index_crc else 0
    filtered = any(flags & SliceFlag.KEY_FILTER for flags in file.flags)
    return FileCopy(key, key if to is None else to, file.size, file.footer_length, pieces, crc, filtered)


def data_files(topic: str, rows: Slices) -> list[FileCopy]:
    return [data_file(topic, file) for file in file_slices(rows)]


def add_file(files: dict[str, FileCopy], file: FileCopy) -> None:
    """Add a file by its key. A rewrite names one again with the slices that it keeps: the most slices count."""
    earlier = files.get(file.key)
    if earlier is None or len(earlier.pieces) < len(file.pieces):
        files[file.key] = file


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
    new = [file for file in files if file.to not in present or file.footer == 0]
    missing_bytes = sum(file.size for file in new if file.to not in present)
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


def _copy(source: Store, target: Store, file: FileCopy, present: Mapping[str, int], options: CopyOptions) -> Copied:
    done = Copied()
    if file.footer == 0:
        done += _copy_indexes(source, target, file, present, options.env)
    if file.filtered:
        done += _copy_filters(source, target, file, present, options.env)
    if file.to in present:
        if present[file.to] != file.size:
            message = f"{target.location} holds {present[file.to]} bytes of it, expected {file.size}: delete it there"
            raise Corrupt(message, file=file.to)
        return done
    try:
        return done + _copy_data(source, target, file, options.link)
    except Corrupt:
        # A bit that flipped on the way: read again before calling it damaged.
        return done + _copy_data(source, target, file, options.link)


def _copy_data(source: Store, target: Store, file: FileCopy, link: bool) -> Copied:
    if link and _linked(source, target, file):
        try:
            for _ in _checked(source, file):
                pass
        except BaseException:
            target.delete(file.to)
            raise
        return Copied(1, 0, file.size)
    writer = target.writer(file.to)
    try:
        for data in _checked(source, file):
            writer.write(data)
        writer.close()
    except Unavailable:
        writer.discard()
        info = target.stat(file.to)
        if info is None or info.size != file.size:
            raise
        # Another run has copied it meanwhile, or our own answer was lost.
        return Copied()
    except BaseException:
        writer.discard()
        raise
    return Copied(1, file.size)


def _linked(source: Store, target: Store, file: FileCopy) -> bool:
    """Make a hard link of the file. False if that is not possible, as from one disk to another."""
    if not isinstance(source, LocalStore) or not isinstance(target, LocalStore):
        return False
    path = os.path.join(source.location, file.key)
    try:
        return target.link(path, os.stat(path).st_ino, file.to)
    except OSError:
        return False


def _checked(source: Store, file: FileCopy) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks; `Corrupt` at the first that is not what the commit says."""
    sums = [0] * len(file.pieces)
    footer: list[bytes] = []
    start = first = 0
    while start < file.size:
        data = source.get(file.key, start, min(CHUNK, file.size - start))
        if not data:
            break
        end = start + len(data)
        for i in range(first, len(file.pieces)):
            piece = file.pieces[i]
            if piece.position >= end:
                break
            low, high = max(piece.position, start), min(piece.position + piece.size, end)
            if high > low:
                sums[i] = crc32c.crc32c(memoryview(data)[low - start : high - start], sums[i])
            if piece.position + piece.size <= end:
                if sums[i] != piece.crc:
                    raise Corrupt(
                        "bytes are not what the commit says: restore the file, or move the log start beyond it",
                        file=file.key,
                        position=piece.position,
                        offset=piece.base,
                    )
                first = i + 1
        if end > file.size - file.footer:
            footer.append(data[max(0, file.size - file.footer - start) :])
        start = end
        yield data
    longer = start == file.size and bool(source.get(file.key, start, 1))
    if start != file.size or longer:
        message = f"expected {file.size} bytes, found {'more' if longer else start}"
        raise Corrupt(message, file=file.key, position=start)
    if file.footer:
        decode_footer(b"".join(footer), file_size=file.size, file=file.key)


def _copy_indexes(source: Store, target: Store, file: FileCopy, present: Mapping[str, int], env: Env) -> Copied:
    names = [f"{file.to.removesuffix('log')}{suffix}" for suffix in SUFFIXES]
    if file.to in present and all(name in present for name in names[:2]):
        return Copied()
    for again in (True, False):
        contents = [read_if_there(source, f"{file.key.removesuffix('log')}{suffix}") for suffix in SUFFIXES]
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


def _copy_filters(source: Store, target: Store, file: FileCopy, present: Mapping[str, int], env: Env) -> Copied:
    """Copy the filters of keys beside a file. Without them, or where they are damaged, it is just read more often."""
    name = filter_path(file.to)
    data = None if name in present else read_if_there(source, filter_path(file.key))
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


@dataclass
class Named:
    """Files that one of the versions `base.version` to `last.version` names, by key.

    `unnamed` is the first version that no longer names a file; `times` the commit time of each version.
    """

    base: Snapshot
    last: Snapshot
    files: dict[str, FileCopy] = field(default_factory=dict)
    unnamed: dict[str, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    def since(self, missing: Iterable[str]) -> int:
        """The version from which on nothing is missing; `NotFound` if the last one itself misses something."""
        first = max(self.base.version, 0)
        for key in missing:
            if key not in self.unnamed:
                raise NotFound(f"{key} is missing, and version {self.last.version} names it: run verify")
            first = max(first, self.unnamed[key])
        return first

    def of_last(self) -> list[FileCopy]:
        return [file for key, file in self.files.items() if key not in self.unnamed]


def start_at(history: History, version: int) -> Snapshot:
    """The state at a version; -1: before the first."""
    return Snapshot(history.topic, history.store, EMPTY, SliceTable()) if version < 0 else history.at(version)


def oldest_base(history: History, version: int) -> int:
    """The oldest version from which all states up to `version` can be rebuilt; -1: all there ever were."""
    if history.commits.has(0, version):
        return -1
    for checkpoint in sorted(history.checkpoints):
        followed = checkpoint <= version and history.commits.has(checkpoint + 1, version)
        if followed and history.sound(checkpoint) is not None:
            return checkpoint
    raise NotFound(
        f"version {version} of topic '{history.topic}' cannot be rebuilt: no sound checkpoint at or below it has all "
        "commits between; run verify"
    )


def files_named(history: History, base: Snapshot, version: int) -> Named:
    """Walk the log from `base` to `version`. `NotFound` if a commit is gone, `Corrupt` if one does not follow."""
    topic = history.topic
    named = Named(base, base, {file.key: file for file in data_files(topic, base.slices.all())})
    named.times[base.version] = base.head.made_ms
    head, table, paths = base.head, base.slices, base.slices.paths()
    for after, commit in history.walk(base.head, version):
        head, table = after, table.apply(commit, after)
        named.times[head.version] = head.made_ms
        for file in commit.files:
            made = data_file(topic, file)
            add_file(named.files, made)
            named.unnamed.pop(made.key, None)
        if commit.remove or commit.log_starts or commit.op in ("create", "delete"):
            now = table.paths()
            for path in paths - now:
                named.unnamed[file_key(topic, path)] = head.version
            paths = now
        else:
            paths |= {file.path for file in commit.files}
    named.last = Snapshot(topic, history.store, head, table)
    # Named and gone within one commit: it holds nothing that a version shows.
    for key in set(named.files) - {file_key(topic, path) for path in paths} - set(named.unnamed):
        named.unnamed[key] = head.version
    return named
