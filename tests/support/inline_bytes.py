"""The inline records of a commit object, as bytes."""

from __future__ import annotations

import json


def inline_records_of(data: bytes) -> bytes:
    """Return the inline records of an intact commit object; empty if it has none."""
    line = data[: data.index(b"\n") + 1]
    copies = json.loads(line).get("carried", {"bytes": 0})["bytes"]
    return data[len(line) + copies :]
