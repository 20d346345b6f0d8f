"""Regular expressions of clients."""

from __future__ import annotations

import pytest

from sparklog.serve.name_patterns import matching_names


def test_an_expression_must_match_the_entire_name() -> None:
    names = ["orders", "orders-eu", "payments"]
    assert matching_names("orders", names) == {"orders"}
    assert matching_names("orders|pay.*", names) == {"orders", "payments"}
    assert matching_names("[a-z]+-[a-z]+", names) == {"orders-eu"}


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "*", "[b-a]"])
def test_expressions_that_re2_does_not_support_are_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match="Invalid regular expression"):
        matching_names(pattern, [])
