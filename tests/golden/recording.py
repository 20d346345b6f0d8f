"""A store that remembers all that was ever written to it, by stage, and the comparison of two such records."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from sparklog.log.journal.documents import document_of
from sparklog.storage.memory import MemoryStore

LIBRARIES = "libraries.json"
DELETED = "deleted.txt"
SHOWN = 12


@dataclass
class Recording:
    """`<stage>/<store>/<key>` -> bytes of all that was created, and a list of what was deleted, per stage and store."""

    stage: str = ""
    created: dict[str, bytes] = field(default_factory=dict)
    deleted: dict[str, list[str]] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        lists = {name: "".join(f"{key}\n" for key in sorted(keys)).encode() for name, keys in self.deleted.items()}
        return {LIBRARIES: libraries(), **self.created, **lists}


class RecordingStore(MemoryStore):
    """A memory store that enters what is created and deleted in a recording, under its name."""

    def __init__(self, clock: Callable[[], int], name: str, recording: Recording) -> None:
        super().__init__(clock, name)
        self._recording = recording

    def create(self, key: str, data: bytes) -> bool:
        done = super().create(key, data)
        if done:
            name = f"{self._recording.stage}/{self._name}/{key}"
            assert name not in self._recording.created, f"{name} is created twice: give the calls stages of their own"
            self._recording.created[name] = bytes(data)
        return done

    def delete(self, key: str) -> None:
        if self.stat(key) is not None:
            self._recording.deleted.setdefault(f"{self._recording.stage}/{self._name}/{DELETED}", []).append(key)
        super().delete(key)


def libraries() -> bytes:
    """Versions of what compresses the tables of checkpoints: with another one, their bytes may be others."""
    return json.dumps({"pyarrow": pa.__version__}).encode()


def write_tree(files: dict[str, bytes], tree: Path) -> None:
    for name, data in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_tree(tree: Path) -> dict[str, bytes]:
    names = [path for path in tree.rglob("*") if path.is_file() and path.name != ".complete"]
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in names}


def differences(expected: dict[str, bytes], found: dict[str, bytes]) -> str:
    """Names that are missing or new, and how files of one name differ: JSON documents as a diff. Empty: the same."""
    exact = expected[LIBRARIES] == found[LIBRARIES]
    expected = {name: data for name, data in expected.items() if name != LIBRARIES}
    found = {name: data for name, data in found.items() if name != LIBRARIES}
    lines = [f"missing: {name}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"new: {name}" for name in sorted(found.keys() - expected.keys())]
    both = [name for name in sorted(expected.keys() & found.keys()) if expected[name] != found[name]]
    differing = [name for name in both if exact or text(name, expected[name]) != text(name, found[name])]
    for name in differing[:SHOWN]:
        before, after = text(name, expected[name], exact), text(name, found[name], exact)
        lines += difflib.unified_diff(before, after, f"expected {name}", f"found {name}", n=1, lineterm="")
        if before == after:
            lines.append(f"{name}: the same text, other bytes: {expected[name]!r:.2000}\n{found[name]!r:.2000}")
    if len(differing) > SHOWN:
        lines.append(f"and {len(differing) - SHOWN} more files differ")
    return "\n".join(lines)


def text(name: str, data: bytes, exact: bool = False) -> list[str]:
    """Lines that show a file. Unless `exact`, without what depends on the library that compressed a table."""
    if name.endswith(".json"):
        first_line = document_of(data)
        document = json.loads(first_line)
        lines = json.dumps(document if exact else without_table_sizes(document), indent=1).splitlines()
        records = data[len(first_line) :]
        return [*lines, _digest(records)] if records else lines
    if name.endswith(".arrow"):
        table = pa.ipc.open_file(io.BytesIO(data)).read_all()
        return [str(table.schema), *map(str, table.to_pylist())]
    if name.endswith(DELETED):
        return data.decode().splitlines()
    return [_digest(data)]


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def without_table_sizes(document: object) -> object:
    """A document without checksums, sizes of compressed tables, and sums that they are part of."""
    if isinstance(document, list):
        return [without_table_sizes(item) for item in document]
    if isinstance(document, dict):
        loose = {"crc"}
        loose |= {"size"} if str(document.get("name")).endswith(".arrow") else set()
        loose |= {"bytes"} if "objects" in document else set()
        return {key: without_table_sizes(value) for key, value in document.items() if key not in loose}
    return document
