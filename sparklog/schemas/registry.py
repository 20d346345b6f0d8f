"""A schema registry: schemas by id, and versions of subjects, with the schemas that they refer to.

Schemas are cached in memory and, if a cache directory is given, on disk. The latest version of a subject can change,
and an unknown schema or subject can be registered, so these responses are cached for a few seconds. Without a URL,
schemas are read only from the cache directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparklog.errors import BadRequest, Corrupt, NotFound, advice
from sparklog.format.registered import AVRO, RegisteredSchema
from sparklog.schemas.disk_cache import LATEST, SchemaFiles
from sparklog.schemas.rest_client import TIMEOUT_S, RestClient
from sparklog.storage.retries import Clock

RECENT_S = 10.0
"""Time for which the latest version of a subject, and the absence of a schema, are cached.

Otherwise, each batch of records would request the latest version, and each row would request an unknown schema id.
"""


class SchemaRegistry:
    """A registry with Confluent's REST API, for example Confluent Schema Registry, Karapace, Redpanda or Apicurio.

    Args:
        url: URL of the registry, or several URLs of one registry as a list or separated by commas. A URL may contain
            the user and the password. None reads only from `cache_dir`.
        basic_auth: `user:password`.
        token: Bearer token.
        ca_file: File with the certificates of the CA that signed the certificate of the registry, in the format PEM.
            Default: the CAs of the system.
        certificate_file: File with the client certificate, in the format PEM.
        key_file: File with the key of the client certificate. Default: `certificate_file`.
        cache_dir: Directory for copies of schemas. It can be used without the registry.
        timeout_s: Maximum time to wait for a response.

    Example:
        registry = formats.SchemaRegistry("http://localhost:8081", cache_dir="/data/schemas")
        orders = registry.subject("orders-value")
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        basic_auth: str | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
        cache_dir: str | Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if url is None and cache_dir is None:
            raise BadRequest("expected the URL of a schema registry or a cache directory, found none")
        access: dict[str, Any] = {
            "basic_auth": basic_auth,
            "token": token,
            "ca_file": ca_file,
            "certificate_file": certificate_file,
            "key_file": key_file,
            "timeout_s": timeout_s,
        }
        urls = url if url is None or isinstance(url, str) else tuple(url)
        self._arguments = (urls, None if cache_dir is None else str(cache_dir), tuple(access.items()))
        self._client = None if url is None else RestClient.of(url, **access)
        self._files = None if cache_dir is None else SchemaFiles(Path(cache_dir))
        self._is_checked = False
        self._clock = Clock()
        self._schemas: dict[int, RegisteredSchema] = {}
        self._recent: dict[str, tuple[float, dict[str, Any] | NotFound]] = {}
        self._versions: dict[tuple[str, int], dict[str, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Other processes, such as those of Spark tasks, open the registry with the same arguments.
        return _opened, self._arguments

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._client.urls) if self._client else self._files!r})"

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id, with the schemas that it refers to.

        Raises:
            NotFound: If the id is unknown.
            Unavailable: If the registry cannot be reached or denies access.
        """
        if schema_id in self._schemas:
            return self._schemas[schema_id]
        document = self._cached_or(
            lambda files: files.schema(schema_id),
            f"/schemas/ids/{schema_id}",
            lambda files, found: files.add_schema(schema_id, found),
            f"schema id {schema_id}",
        )
        self._schemas[schema_id] = self._resolved(schema_id, document)
        return self._schemas[schema_id]

    def subject(self, name: str, *, message: str | None = None) -> Subject:
        """Return a subject, to decode values to its latest schema and to encode values with this schema.

        Args:
            name: Name of the subject. The subject of a topic's values is `<topic>-value`, and the subject of its keys
                is `<topic>-key`, unless the producer has another naming strategy.
            message: For Protobuf, the full name of the message type. Default: the first type in the schema.
        """
        return Subject(self, name, message)

    def subjects(self) -> list[str]:
        """Return the names of all subjects."""
        return sorted(map(str, self._listed("/subjects", "subjects")))

    def _latest(self, subject: str) -> dict[str, Any]:
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        if isinstance(recent := self._recent_response(path), dict):
            return recent
        document = self._cached_or(
            # Only without the registry, because another version can be the latest now.
            lambda files: files.version(subject, LATEST) if self._client is None else None,
            path,
            lambda files, found: files.add_version(subject, LATEST, found),
            f"subject {subject!r}" if self._client is not None else f"the latest version of subject {subject!r}",
        )
        self._add_version(subject, document)
        self._recent[path] = (self._clock.now() + RECENT_S, document)
        return document

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        if (subject, version) not in self._versions:
            document = self._cached_or(
                lambda files: files.version(subject, version),
                # A schema may refer to a version that was deleted since then.
                f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true",
                lambda files, found: files.add_version(subject, version, found),
                f"version {version} of the subject {subject!r}",
            )
            self._add_version(subject, document)
            self._versions[subject, version] = document
        return self._versions[subject, version]

    def _add_version(self, subject: str, document: dict[str, Any]) -> None:
        """Cache a version of a subject by its number and by its schema id."""
        number, schema_id = document.get("version"), document.get("id")
        if type(number) is not int or type(schema_id) is not int:
            raise self._unexpected(f"a version of the subject {subject!r}")
        self._versions[subject, number] = document
        if self._files is not None and self._client is not None:
            self._files.add_version(subject, number, document)
            self._files.add_schema(schema_id, document)

    def _versions_of(self, subject: str) -> list[int]:
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return sorted(map(int, self._listed(path, f"versions of the subject {subject!r}")))

    def _listed(self, path: str, content: str) -> list[Any]:
        if self._client is None:
            raise BadRequest(f"the {content} cannot be listed without the URL of the schema registry")
        try:
            found = self._client.send("GET", path)
        except NotFound:
            raise NotFound(f"{self._client.name} has no {content}") from None
        if not isinstance(found, list):
            raise self._unexpected(content)
        return found

    def _send_schema(self, subject: str, schema: RegisteredSchema, references: Any, *, register: bool) -> int:
        """Register a schema, or look its id up."""
        if self._client is None:
            raise BadRequest("a schema cannot be registered or looked up without the URL of the schema registry")
        self._recent.clear()
        path = f"/subjects/{quote(subject, safe='')}{'/versions' if register else ''}"
        body: dict[str, Any] = {"schema": schema.text}
        # The type is omitted for Avro, as in requests to registries that have no other types.
        if schema.type != AVRO:
            body["schemaType"] = schema.type
        if references:
            body["references"] = references
        try:
            found = self._client.send("POST", path, body)
        except NotFound as error:
            raise NotFound(
                f"{self._client.name} does not have this schema in the subject {subject!r} ({error}): register it"
            ) from None
        if not isinstance(found, dict) or type(found.get("id")) is not int:
            raise self._unexpected(f"a schema of the subject {subject!r}")
        return int(found["id"])

    def _cached_or(
        self,
        cached: Callable[[SchemaFiles], dict[str, Any] | None],
        path: str,
        add: Callable[[SchemaFiles, dict[str, Any]], None],
        content: str,
    ) -> dict[str, Any]:
        """Return a document from the cache directory, or from the registry. In this case, add it to the directory."""
        if isinstance(recent := self._recent_response(path), NotFound):
            raise NotFound(str(recent))
        files = self._files
        if files is not None:
            if self._client is not None and not self._is_checked:
                files.check_registry(self._client.urls[0])
                self._is_checked = True
            if (document := cached(files)) is not None:
                if not isinstance(document.get("schema"), str):
                    raise Corrupt(f"the directory {files.directory} does not contain {content}: delete its files")
                return document
        if self._client is None:
            assert files is not None
            once = advice(
                python="do this once with the URL of the schema registry and this cache directory",
                shell="run this command once with --schema-registry and this --registry-cache",
            )
            raise NotFound(f"the directory {files.directory} does not contain {content}: {once}")
        try:
            found = self._client.send("GET", path)
        except NotFound:
            error = NotFound(f"{self._client.name} does not contain {content}")
            self._recent[path] = (self._clock.now() + RECENT_S, error)
            raise error from None
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise self._unexpected(content)
        if files is not None:
            add(files, found)
        return found

    def _recent_response(self, path: str) -> dict[str, Any] | NotFound | None:
        expires, response = self._recent.get(path, (0.0, None))
        return response if self._clock.now() < expires else None

    def _unexpected(self, content: str) -> BadRequest:
        name = self._client.name if self._client is not None else str(self._files)
        return BadRequest(f"{name} returned a response without {content}: specify the URL of Confluent's REST API")

    def _resolved(self, schema_id: int, document: dict[str, Any]) -> RegisteredSchema:
        texts: dict[str, str] = {}
        self._add_references(document.get("references"), texts, set())
        schema_type = document.get("schemaType") or AVRO
        return RegisteredSchema(schema_id, schema_type, document["schema"], tuple(texts.items()))

    def _add_references(self, references: Any, texts: dict[str, str], visited: set[tuple[str, int]]) -> None:
        """Add the texts of references to `texts`, after the texts that they refer to."""
        for reference in references or ():
            try:
                name, subject, version = str(reference["name"]), str(reference["subject"]), int(reference["version"])
            except (KeyError, TypeError, ValueError):
                raise self._unexpected("valid references") from None
            if name in texts or (subject, version) in visited:
                continue
            visited.add((subject, version))
            document = self._version(subject, version)
            self._add_references(document.get("references"), texts, visited)
            texts[name] = document["schema"]


@lru_cache(maxsize=16)
def _opened(
    url: str | tuple[str, ...] | None, cache_dir: str | None, access: tuple[tuple[str, Any], ...]
) -> SchemaRegistry:
    """Return the registry that this process has already opened with these arguments, so that tasks share its cache."""
    return SchemaRegistry(url, cache_dir=cache_dir, **dict(access))


class Subject:
    """A named list of versions of a schema in a registry. `SchemaRegistry.subject` returns it.

    Args:
        registry: The registry.
        name: Name of the subject.
        message: For Protobuf, the full name of the message type. Default: the first type in the schema.

    Example:
        orders = formats.Subject(registry, "orders-value")
    """

    def __init__(self, registry: SchemaRegistry, name: str, message: str | None = None) -> None:
        self.registry, self.name, self.message = registry, name, message

    def __repr__(self) -> str:
        return f"Subject({self.registry!r}, {self.name!r}, {self.message!r})"

    def schema(self, version: int | None = None) -> RegisteredSchema:
        """Return a version of the schema.

        Args:
            version: Number of the version. Default: the latest version.

        Raises:
            NotFound: If the subject or the version does not exist.
        """
        registry = self.registry
        document = registry._latest(self.name) if version is None else registry._version(self.name, version)
        return replace(registry._resolved(document["id"], document), message=self.message)

    def exists(self) -> bool:
        """Return True if the subject has a version."""
        try:
            self.registry._latest(self.name)
        except NotFound:
            return False
        return True

    def versions(self) -> list[int]:
        """Return the numbers of the versions."""
        return self.registry._versions_of(self.name)

    def register(
        self, text: str, schema_type: str = AVRO, *, references: Iterable[tuple[str, str, int]] = ()
    ) -> RegisteredSchema:
        """Register a schema as the next version, or return the version that has this schema.

        Args:
            text: The schema.
            schema_type: `AVRO`, `JSON` or `PROTOBUF`.
            references: The name, the subject and the version of each schema that this schema refers to.

        Raises:
            BadRequest: If the schema is invalid, or if it is not compatible with the earlier versions.
        """
        return self._sent(text, schema_type, references, register=True)

    def find(
        self, text: str, schema_type: str = AVRO, *, references: Iterable[tuple[str, str, int]] = ()
    ) -> RegisteredSchema:
        """Return the version that has a schema. The arguments are those of `register`.

        Raises:
            NotFound: If no version has this schema.
        """
        return self._sent(text, schema_type, references, register=False)

    def unregistered(self, text: str, schema_type: str, references: Iterable[tuple[str, str, int]]) -> RegisteredSchema:
        """Return a schema without an id, with the schemas that it refers to. The arguments are those of `register`."""
        document = {"schema": text, "schemaType": schema_type, "references": _documents(references)}
        return replace(self.registry._resolved(0, document), message=self.message)

    def _sent(
        self, text: str, schema_type: str, references: Iterable[tuple[str, str, int]], *, register: bool
    ) -> RegisteredSchema:
        references = list(references)
        schema = self.unregistered(text, schema_type, references)
        schema_id = self.registry._send_schema(self.name, schema, _documents(references), register=register)
        return replace(schema, id=schema_id)


def _documents(references: Iterable[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Return references as in the registry's API."""
    return [dict(zip(("name", "subject", "version"), reference, strict=True)) for reference in references]
