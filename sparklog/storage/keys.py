"""Keys: what names an object may have, and what kind of object a key names.

A key is what a file system, an object store and a URL all take without escaping: parts of letters, digits and
`._-%=+@,` joined by `/`. `~` is kept for temporary files of the local store, so no key can collide with one.

| key                                       | kind         |
|-------------------------------------------|--------------|
| `_root.json`                              | `root`       |
| `<log>/_log/<20 digits>.json`             | `commit`     |
| `<log>/_log/checkpoints/...`              | `checkpoint` |
| `<topic>/append/...`                      | `append`     |
| `<topic>/sealed/...`                      | `sealed`     |
| anything else                             | `other`      |
"""

from __future__ import annotations

import re

from sparklog.errors import BadRequest


MAX_PART = 255
"""Bytes of one part: the limit of every common file system."""
MAX_KEY = 1024
"""Bytes of a key: the limit of S3, GCS and Azure."""
MAX_DOCUMENT = 256 << 20
"""Bytes of a JSON object: some millions of slices. What is longer was not written by sparklog, and is not read."""
DOCUMENT_SUFFIX = ".json"

KEY_KINDS = ("root", "commit", "checkpoint", "append", "sealed", "other")

_PART = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}\Z")
_KEY = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}(?:/[A-Za-z0-9._\-%=+@,]{1,255})*\Z")
_KINDS = re.compile(
    r"(?:.*/)?(?:(?P<commit>_log/[0-9]{20}\.json)|(?P<checkpoint>_log/checkpoints/[^/]+)|(?P<append>append/[^/]+)"
    r"|(?P<sealed>sealed/.+))\Z"
)


def is_part(name: str) -> bool:
    """Whether `name` can be one part of a key."""
    return _PART.match(name) is not None and name not in (".", "..")


def check_key(key: str) -> str:
    """The key itself, if it is one. `BadRequest` if it is absolute, climbs out, is too long or has odd characters."""
    if _KEY.match(key) is not None and len(key) <= MAX_KEY and not _has_dots(key):
        return key
    raise BadRequest(f"not a key: {_show(key)}; {_reason(key)}")


def check_prefix(prefix: str, *, folder: bool = False) -> str:
    """The prefix itself: the beginning of a key. With `folder`, it must be empty or end in `/`."""
    if folder and prefix and not prefix.endswith("/"):
        raise BadRequest(f"not a folder prefix: {_show(prefix)}; it must be empty or end in '/'")
    whole = prefix.removesuffix("/")
    # The last part may be any beginning of a name, also "." or "..": a name may begin with dots.
    folders, slash, start = whole.rpartition("/")
    if prefix.endswith("/"):
        check_key(whole)
    elif slash:
        check_key(folders)
    if start and _PART.match(start) is None:
        raise BadRequest(f"not a prefix of keys: {_show(prefix)}; {_reason(prefix)}")
    return prefix


def key_kind(key: str) -> str:
    """Which of `KEY_KINDS` a key is; wrappers count and inject faults by it."""
    if key == "_root.json":
        return "root"
    found = _KINDS.match(key)
    return (found.lastgroup or "other") if found else "other"


def _has_dots(key: str) -> bool:
    return "." in key and any(part in (".", "..") for part in key.split("/"))


def _show(key: str) -> str:
    return repr(key if len(key) <= 80 else key[:77] + "...")


def _reason(key: str) -> str:
    if not key:
        return "it is empty"
    if len(key.encode("utf-8", "replace")) > MAX_KEY:
        return f"it is longer than {MAX_KEY} bytes"
    if key.startswith("/"):
        return "it must be relative to the root"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return "it must not have empty, '.' or '..' parts"
        if len(part) > MAX_PART:
            return f"a part is longer than {MAX_PART} characters"
    return "allowed are letters, digits and ._-%=+@, joined by '/'"
