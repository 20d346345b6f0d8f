"""The tests in docs/guides/pytest.md are run as tests."""

from __future__ import annotations

import re

from tests.test_architecture import REPOSITORY

GUIDE = REPOSITORY / "docs" / "guides" / "pytest.md"
SNIPPETS = list(re.finditer(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))
SPARK = "spark.readStream"
"""Text in the code block that tests/datasource/test_spark_docs.py runs."""


def run(snippet: re.Match[str], names: dict[str, object]) -> None:
    """Execute a code block. Tracebacks contain the line numbers of the page."""
    above = "\n" * GUIDE.read_text()[: snippet.start(1)].count("\n")
    exec(compile(above + snippet[1], str(GUIDE), "exec"), names)


for match in SNIPPETS:
    if SPARK not in match[1]:
        run(match, globals())


def test_names_of_tests_in_the_guide_are_unique() -> None:
    shown = [name for match in SNIPPETS for name in re.findall(r"^def (test_\w+)", match[1], re.MULTILINE)]
    assert len(shown) == len(set(shown)) >= 9
    assert sum(SPARK in match[1] for match in SNIPPETS) == 1
