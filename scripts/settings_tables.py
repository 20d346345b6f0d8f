"""Write the tables of settings in the pages of docs/: `python -m scripts.settings_tables`.

The text of a page is written by hand. The first table below a heading is made from the rows of the code. The page of
configs is written by `sparklog configs docs --markdown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sparklog.clients.consumer.consumer_options import ConsumerOptions
from sparklog.clients.producer.options import ProducerOptions
from sparklog.common.settings import keyword_settings, markdown_table
from sparklog.datasource.option_table import OPTIONS

DOCS = Path(__file__).resolve().parents[1] / "docs"
_CLIENT = ("name", "default", "valid", "what it does")
_TABLE = re.compile(r"^\|(?:.*\n\|)+.*\n", re.MULTILINE)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with a table of settings, and its text with the current table."""
    for page, heading, table in (
        ("guides/consumers.md", "## Options\n", markdown_table(keyword_settings(ConsumerOptions).values(), _CLIENT)),
        ("guides/producer.md", "## Options\n", markdown_table(keyword_settings(ProducerOptions).values(), _CLIENT)),
        (
            "reference/spark-options.md",
            "# Options of the Spark data source\n",
            markdown_table(
                OPTIONS, ("name", "used by", "type", "valid", "unit", "default", "what it does", "Kafka's connector")
            ),
        ),
    ):
        before, found, after = (DOCS / page).read_text().partition(heading)
        yield DOCS / page, before + found + _TABLE.sub(table.replace("\\", r"\\"), after, count=1)


if __name__ == "__main__":
    for file, text in pages():
        file.write_text(text)
