"""`--json`: one document on one line, its names in camel case, as in Kafka's documents and in sparklog's files."""

from __future__ import annotations

import json


def named(value: object, **more: object) -> dict[str, object]:
    """A data class as an object of JSON, with `more` in it."""
    from sparklog.tools.report.facts import document

    found = document(value)
    assert isinstance(found, dict)
    return {**found, **more}


def print_json(value: object) -> None:
    """Print data classes, or what JSON has anyway, as one line."""
    from sparklog.tools.report.facts import document

    print(json.dumps(document(value)))
