"""Schemas of a registry as files, which programs can read without the registry.

    <directory>/registry.json                       {"url": "http://host:8081"}
    <directory>/ids/7.json                          the schema with id 7
    <directory>/subjects/orders-value/3.json        version 3 of the subject orders-value
    <directory>/subjects/orders-value/latest.json   the version that was the latest when the program last read it

A schema id and a version never change their schema, so their files are written once. A file contains the fields of the
registry's response. It is written under another name and then renamed, so several programs can use a directory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparklog.errors import BadRequest, Corrupt, Unavailable
from sparklog.storage.durable_files import replace_file

LATEST = "latest"
MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class SchemaFiles:
    """The cache directory of one registry."""

    directory: Path

    def check_registry(self, url: str) -> None:
        """Raise `BadRequest` if the directory belongs to another registry, because ids have other schemas there."""
        file = self.directory / "registry.json"
        cached = self._read(file)
        if cached is None:
            self._write(file, {"url": url})
        elif cached.get("url") != url:
            raise BadRequest(
                f"the directory {self.directory} contains schemas of the registry {cached.get('url')}, not of {url}:"
                " specify another directory, or delete it"
            )

    def schema(self, schema_id: int) -> dict[str, Any] | None:
        return self._read(self._id_file(schema_id))

    def version(self, subject: str, version: int | str) -> dict[str, Any] | None:
        return self._read(self._version_file(subject, version))

    def add_schema(self, schema_id: int, document: dict[str, Any]) -> None:
        self._write(self._id_file(schema_id), document)

    def add_version(self, subject: str, version: int | str, document: dict[str, Any]) -> None:
        self._write(self._version_file(subject, version), document)

    def _id_file(self, schema_id: int) -> Path:
        return self.directory / "ids" / f"{schema_id}.json"

    def _version_file(self, subject: str, version: int | str) -> Path:
        name = quote(subject, safe="")
        if len(name) > MAX_NAME_CHARACTERS or name.startswith("."):
            name = hashlib.sha256(subject.encode()).hexdigest()
        return self.directory / "subjects" / name / f"{version}.json"

    def _read(self, file: Path) -> dict[str, Any] | None:
        try:
            document = json.loads(file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"the cached schema {file} cannot be read: {error.strerror}") from None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise Corrupt(f"the cached schema {file} is not valid: delete the file")
        return document

    def _write(self, file: Path, document: dict[str, Any]) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(file), json.dumps(document))
        except OSError as error:
            raise Unavailable(f"the schema cannot be written to {file}: {error.strerror}") from None
