"""Make the page of the data source's options from their table: `python -m scripts.option_page`."""

from __future__ import annotations

from pathlib import Path

from sparklog.datasource.option_table import OPTIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "spark-options.md"
HEAD = """# Options of the Spark data source

Of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("sparklog")`, and of [tables in
SQL](../guides/spark-recipes.md#sql). Settings of Kafka's clients (`kafka.*`) that are not here are accepted without
effect, or refused with the reason. `python -m scripts.option_page` makes this page from the table of options. Columns
of a write: `value`, and if you like `key`, `headers`, `topic`, `partition`, `timestamp`. A DataFrame of a batch read
keeps the plan of its first action: it never sees what comes later, so `load()` again.

The last column compares with Spark's Kafka connector: *yes* if name, values and default are the same there, *own* if it
has no such option, else what differs. Type `timestamp` is milliseconds since 1970, or ISO 8601: `2026-01-31T12:00:00`,
in UTC unless it ends with an offset such as `+01:00`. JSON by timestamp takes both, too.

| option | where | type | unit | default | what it does | as in Kafka's connector? |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    lines = []
    for option in OPTIONS:
        kind = ", ".join(f"`{choice}`" for choice in option.choices) or option.kind
        default = "" if option.default is None else f"`{str(option.default).lower()}`"
        aliases = f" Also as {', '.join(f'`{name}`' for name in option.aliases)}." if option.aliases else ""
        cells = (
            f"`{option.name}`",
            ", ".join(option.uses),
            kind,
            option.unit,
            default,
            option.doc + aliases,
            option.kafka,
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
