"""Regular expressions of clients, which select topics or transactional ids by name."""

from __future__ import annotations

from collections.abc import Sequence


def matching_names(pattern: str, names: Sequence[str]) -> set[str]:
    """Return the names that match an expression completely. Raises `ValueError` if the expression is invalid.

    As in Kafka, RE2 matches in linear time, so that the expression of a client cannot block the server.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # The empty name is added because Arrow does not compile the expression for an empty array.
    matches = pc.match_substring_regex(pa.array([*names, ""]), f"^(?:{pattern})$").to_pylist()
    return {name for name, is_match in zip(names, matches, strict=False) if is_match}
