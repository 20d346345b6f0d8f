"""Locations: paths, `file:` URLs, and URLs of buckets. A location is a string that has the same meaning everywhere.

| location                                      | store                                   | normal form                |
|-----------------------------------------------|-----------------------------------------|----------------------------|
| `/data/log`, `file:///data/log`               | a directory                             | `/data/log`                |
| `s3://bucket/log`, `s3a://bucket/log`         | S3 and compatible servers               | `s3://bucket/log`          |
| `gs://bucket/log`                             | Google Cloud Storage                    | `gs://bucket/log`          |
| `az://container/log?account_name=name`        | Azure Blob Storage                      | the same                   |
| `abfss://container@name.dfs.core.windows.net/log` | Azure Blob Storage, in Hadoop's form | `az://container/log?...`  |
| `hdfs://namenode:8020/log`                    | HDFS                                    | the same                   |

A URL may end with settings that are not secret (`sparklog.storage.cloud_settings`). The path of a URL is not unescaped,
because the keys of a store are not escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote

from sparklog.errors import BadRequest
from sparklog.storage.cloud_settings import AZURE, GCS, HDFS, S3, check_settings, is_setting

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")
_SCHEMES = {"s3": S3, "s3a": S3, "s3n": S3, "gs": GCS, "az": AZURE, "abfs": AZURE, "abfss": AZURE, "hdfs": HDFS}
_AZURE_HOST = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.([a-z0-9.\-]+)")
_FORMS = {
    S3: "s3://bucket/log",
    GCS: "gs://bucket/log",
    AZURE: "az://container/log?account_name=name",
    HDFS: "hdfs://namenode:8020/log",
}
BUCKET_REMEDY = (
    f"use the URL of the underlying bucket, such as {', '.join(_FORMS[scheme] for scheme in (S3, GCS, AZURE))}"
)
_OTHER_SCHEMES = {
    "dbfs": BUCKET_REMEDY,
    "http": "use s3://bucket/log?endpoint=<server>",
    "memory": "it exists only in one process; for Spark and other processes, use a path (fixture sparklog_disk_root)",
    "https": "use s3://bucket/log?endpoint=<server>, or az://container/log for Azure",
    "wasb": "use abfss://container@account.dfs.core.windows.net/log",
    "wasbs": "use abfss://container@account.dfs.core.windows.net/log",
}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The URL of a location in an object store.

    `host` is the bucket, container or namenode. `path` has no leading and trailing `/`.
    """

    scheme: str
    host: str
    path: str
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        query = "&".join(f"{name}={quote(value, safe=':/,.-_')}" for name, value in self.settings)
        return f"{self.scheme}://{self.host}{'/' if self.path else ''}{self.path}{'?' if query else ''}{query}"


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return True if a location is a URL, but not of a local directory, even if its scheme is not supported."""
    scheme = _SCHEME.match(os.fspath(location))
    return (
        scheme is not None and scheme.group(1).lower() != "file" and os.fspath(location).startswith("//", scheme.end())
    )


def parse_url(location: str) -> StoreUrl:
    """Parse a URL. Raises `BadRequest` for an unsupported scheme, a secret, or an invalid path."""
    scheme_match = _SCHEME.match(location)
    name = scheme_match.group(1).lower() if scheme_match else ""
    if scheme_match is None or name not in _SCHEMES or not location.startswith("//", scheme_match.end()):
        raise _no_store(location, name)
    scheme = _SCHEMES[name]
    rest, _, query = location[scheme_match.end() + 2 :].partition("?")
    host, _, path = rest.partition("/")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    if name in ("abfs", "abfss"):
        host, settings = _azure(location, host, settings)
    if "@" in host:
        raise BadRequest(
            f"a {scheme}:// URL must not contain a user or keys: use {_FORMS[scheme]}, and set the keys in "
            "the environment or a credentials file, or use a role of the host"
        )
    path = path.rstrip("/")
    parts = path.split("/") if path else []
    if not host or any(part in ("", ".", "..") for part in parts) or re.search(r"[\x00-\x1f#\\]", path):
        raise BadRequest(f"{_shown(location)} is not a valid location; expected {_FORMS[scheme]}")
    return StoreUrl(scheme, host, path, tuple(check_settings(scheme, settings, f"a {scheme}:// URL").items()))


def normal_location(location: str | os.PathLike[str]) -> str:
    """Return the normal form of a location: an absolute path or a URL. Raises `BadRequest` if it is invalid."""
    return str(parse_url(os.fspath(location))) if is_url(location) else local_path(location)


def without_settings(location: str) -> str:
    """Return a location without its settings, for messages."""
    return location.partition("?")[0] if is_url(location) else location


def with_settings(location: str, options: Mapping[str, str]) -> str:
    """Add the settings in options to a URL. Raises `BadRequest` if they contradict the URL or contain a secret."""
    extra = {name: value for name, value in options.items() if is_setting(name)}
    if not extra:
        return location
    if not is_url(location):
        raise BadRequest(
            f"{', '.join(sorted(extra))} are settings of object stores, but {location} is a path: remove them"
        )
    url = parse_url(location)
    settings = dict(url.settings)
    for name, value in check_settings(url.scheme, extra, "the options").items():
        if settings.setdefault(name, value) != value:
            raise BadRequest(f"the URL sets {name}={settings[name]}, but the options set {value}: set only one of them")
    return str(replace(url, settings=tuple(sorted(settings.items()))))


def join(location: str, name: str) -> str:
    """Return the location of the directory `name`, which may contain `/`, below another location."""
    if not is_url(location):
        return os.path.join(location, name)
    url = parse_url(location)
    return str(replace(url, path=f"{url.path}/{name}" if url.path else name))


def split(location: str) -> tuple[str, str]:
    """Return the parent of a location, and its name there. The name is empty for a bucket or the root of a disk."""
    if not is_url(location):
        return os.path.split(location)
    url = parse_url(location)
    above, _, name = url.path.rpartition("/")
    return str(replace(url, path=above)), name


def local_path(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a path or a `file:` URL, as in Spark and Hadoop (`file:/a`, `file:///a`)."""
    text = os.fspath(location)
    scheme = _SCHEME.match(text)
    if scheme is None:
        if not text:
            raise BadRequest("the location is empty; expected a path such as /data/logs or s3://bucket/logs")
        return _check_databricks_path(os.path.abspath(text))
    refuse_scheme(text)
    path = text[scheme.end() :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise BadRequest(f"{text} contains the host {host!r}; expected file:///<path> or a path")
        path = slash + rest
    if not path.startswith("/"):
        raise BadRequest(f"{text} is not absolute; expected file:///<path> or a path")
    return _check_databricks_path(os.path.abspath(unquote(path)))


def _check_databricks_path(path: str) -> str:
    top = "/" + path[1:].partition("/")[0]
    if top in ("/dbfs", "/Volumes") and not os.path.isdir(top):
        raise BadRequest(f"{path} is a Databricks path, but {top} does not exist here: {BUCKET_REMEDY}")
    return path


def refuse_scheme(location: str) -> None:
    """Raise `BadRequest` for any scheme except `file:`, with or without slashes (`hdfs:/x`, `s3:x`)."""
    scheme = _SCHEME.match(location)
    if scheme is None or scheme.group(1).lower() == "file":
        return
    name = scheme.group(1).lower()
    if name in _SCHEMES and location.startswith("//", scheme.end()):
        raise BadRequest(f"{_shown(location)} is a URL of a bucket; expected a local directory")
    raise _no_store(location, name)


def _azure(location: str, host: str, settings: dict[str, str]) -> tuple[str, dict[str, str]]:
    container, separator, server = host.partition("@")
    match = _AZURE_HOST.fullmatch(server)
    if not separator or not container or match is None or ":" in container:
        raise BadRequest(
            f"{_shown(location)} has no valid container; expected abfss://container@account.dfs.core.windows.net/log"
        )
    settings = {"account_name": match[1], **settings}
    if match[2] != "core.windows.net":
        settings.setdefault("endpoint", f"https://{match[1]}.blob.{match[2]}")
    return container, settings


def _no_store(location: str, scheme: str) -> BadRequest:
    shown = _shown(location)
    if scheme in _SCHEMES:
        form = _FORMS[_SCHEMES[scheme]]
        return BadRequest(f"{shown} is missing a slash: expected two after {scheme}:, as in {form}")
    remedy = _OTHER_SCHEMES.get(scheme, f"expected a path, or a URL such as {', '.join(_FORMS.values())}")
    start = len(scheme) + 1
    plain = "" if location.startswith("/", start) else f"; for a directory with this name, use ./{location}"
    return BadRequest(f"{scheme}: locations are not supported ({shown}); {remedy}{plain}")


def _shown(location: str) -> str:
    """Return a location for messages, without its user and query parts, which may contain secrets."""
    return re.sub(r":/{0,2}[^/@]*@", "://...@", location.partition("?")[0])
