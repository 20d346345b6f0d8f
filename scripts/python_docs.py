"""Make the pages of the Python API from docstrings, and that of Spark's options: `python scripts/python_docs.py`.

A docstring has a summary, then sections Args, Returns, Raises and Example, indented below their names.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import sparklog
import sparklog.formats
import sparklog.testing
from sparklog.datasource.option_table import OPTIONS
from sparklog.log.read.record_batches import RecordBatches

FOLDER = "docs/reference"
"""Of all pages, below the repository."""
OPTIONS_PAGE = "spark-options.md"
OPTIONS_HEAD = """# Options of the Spark data source

Of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `format("sparklog")`, and of [tables in
SQL](../guides/spark-recipes.md#sql). Settings of Kafka's clients (`kafka.*`) that are not here are accepted without
effect, or refused with the reason. `scripts/python_docs.py` makes this page from the table of options. Columns of a
write: `value`, and if you like `key`, `headers`, `topic`, `partition`, `timestamp`. A DataFrame of a batch read keeps
the plan of its first action: what comes later it never sees, so `load()` again.

The last column compares with Spark's Kafka connector: *yes* if name, values and default are the same there, *own* if it
has no such option, else what differs. Type `timestamp` is milliseconds since 1970, or ISO 8601: `2026-01-31T12:00:00`,
in UTC unless it ends with an offset such as `+01:00`. JSON by timestamp takes both, too.

| option | where | type | unit | default | what it does | as in Kafka's connector? |
|---|---|---|---|---|---|---|
"""
REPOSITORY = Path(__file__).parents[1]
SECTIONS = ("Args", "Returns", "Raises", "Example")
MADE = "`scripts/python_docs.py` makes this page from the docstrings. The examples follow one another and begin with:"
IMPORTS = """```python
import pyarrow as pa
import sparklog
from sparklog import WriteOptions, WriterKey, formats, testing
```
"""
HEADS = {
    "python.md": f"""# Python: topics, transactions, consumer groups

Everything a user holds or calls is in `sparklog`; each name has types and a docstring. [Values and other
engines](python-values.md) have a page of their own, and so have [functions over whole roots, Spark and
errors](python-maintenance.md). {MADE}

{IMPORTS}""",
    "python-values.md": f"""# Python: values, tables, other engines

The second page of [the Python API](python.md): [keys and values that are no text](../guides/values.md), [topics as
tables](../guides/tables.md), and [topics in DuckDB, Polars and DataFusion](../guides/arrow-engines.md). {MADE}

{IMPORTS}""",
    "python-maintenance.md": f"""# Python: maintenance, Kafka's directories, Spark, errors

The third page of [the Python API](python.md): functions over whole roots. Each does what the command or the job of that
name does. {MADE}

{IMPORTS}""",
    "python-testing.md": f"""# Python: doubles for tests

The fourth page of [the Python API](python.md): what the fixtures of [tests](../guides/testing.md) are made of. {MADE}

{IMPORTS}""",
}
GROUPS_OF = {
    "python.md": ("Open", "Read and write", "Transactions", "Consumer groups"),
    "python-values.md": ("Values", "Tables", "Engines"),
    "python-maintenance.md": ("Maintenance", "Kafka's directories", "Spark", "Errors"),
    "python-testing.md": ("Testing",),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "Open": ("open", "Root", "open_view", "View"),
    "Read and write": ("Topic", "TopicReader", "Scan", "WriteOptions", "WriterKey"),
    "Transactions": ("transactional", "TransactionalProducer", "Transaction"),
    "Consumer groups": ("consumer", "Consumer", "Groups"),
    "Values": ("formats.decode", "formats.encode", "formats.decode_records", "formats.encode_records"),
    "Tables": ("table", "TopicTable", "FollowedTable"),
    "Engines": ("datasets", "duckdb", "polars"),
    "Maintenance": ("compact", "retain", "verify", "backup", "restore", "clone"),
    "Kafka's directories": ("import_kafka", "export_kafka"),
    "Spark": ("configure", "register", "partitioned", "watch"),
    "Testing": (
        "testing.ManualClock",
        "testing.World",
        "testing.RecordStream",
        "testing.CountingStore",
        "testing.Script",
    ),
    "Errors": ("SparklogError", "BadRequest", "NotFound", "Conflict", "Fenced", "Corrupt", "Unavailable"),
}
ENGINE = {"add", "discard", "check", "writer", "states", "ranges", "plan"}
"""Public members that engines use, and no user."""


@dataclass
class Doc:
    """A docstring in its parts: `sections` by name, each its lines."""

    text: str
    sections: dict[str, list[str]] = field(default_factory=dict)


def parse(docstring: str) -> Doc:
    """Take a docstring apart."""
    doc, name = Doc(""), ""
    text: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            name = line.rstrip(":")
            doc.sections[name] = []
        else:
            (doc.sections[name] if name else text).append(line)
    doc.text = "\n".join(text).strip()
    return doc


def entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each entry of Args or Raises; a text goes on where a line is indented further."""
    found: list[list[str]] = []
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        if line.startswith(" "):
            found[-1].append(line.strip())
        elif line:
            found.append([line])
    for parts in found:
        name, _, text = " ".join(parts).partition(":")
        yield name, text.strip()


def joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines).strip()


def signature(name: str, thing: object) -> str:
    """Return the call as one writes it, without types."""
    parts, star = [], False
    for parameter in inspect.signature(thing).parameters.values():  # type: ignore[arg-type]
        if parameter.name in ("self", "env"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            parts.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parts.append(stars + parameter.name + (default if len(default) < 40 else "=..."))
    return f"{name}({', '.join(parts)})"


def types(thing: object) -> dict[str, str]:
    """Return the type of each parameter, as the source has it."""
    found = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    return {each.name: str(each.annotation) for each in found if isinstance(each.annotation, str)}


def call(title: str, thing: object) -> Iterator[str]:
    """Yield the lines of one function or method."""
    doc, hints = parse(thing.__doc__ or ""), types(thing)
    yield f"\n### `{signature(title, thing)}`\n{doc.text}\n"
    for name, text in entries(doc.sections.get("Args", [])):
        if name != "env":
            hint = f" (`{hints[name]}`)" if name in hints else ""
            yield f"* `{name}`{hint}: {text}"
    if "Returns" in doc.sections:
        yield f"* Returns: {joined(doc.sections['Returns'])}"
    if "Raises" in doc.sections:
        reasons = (f"`{name}`: {text.rstrip('.')}" for name, text in entries(doc.sections["Raises"]))
        yield f"* Raises {'; '.join(reasons)}."
    yield from example(doc)


def example(doc: Doc) -> Iterator[str]:
    if "Example" in doc.sections:
        yield f"```python\n{textwrap.dedent(chr(10).join(doc.sections['Example'])).strip()}\n```"


def of_class(name: str, cls: type) -> Iterator[str]:
    """Yield the lines of a class: fields and short methods in a list, methods with Args below it."""
    doc = parse(cls.__doc__ or "")
    yield f"\n### `{name}`\n{doc.text}\n"
    for argument, text in entries(doc.sections.get("Args", [])):
        yield f"* `{argument}`: {text}"
    long = []
    for method, thing in members(cls).items():
        if method.startswith("_") or method in ENGINE or not getattr(thing, "__doc__", None):
            continue
        if isinstance(thing, property):
            yield f"* `{method}`: {first(thing.__doc__ or '')}"
        elif inspect.isfunction(thing):
            if "Args" in parse(thing.__doc__ or "").sections:
                long.append((method, thing))
            else:
                yield f"* `{signature(method, thing)}`: {first(thing.__doc__ or '')}"
    yield from example(doc)
    for method, thing in long:
        yield from call(f"{name}.{method}", thing)


def members(cls: type) -> dict[str, object]:
    """Return the members of a class, with those of `RecordBatches`, which has no place of its own."""
    bases = [base for base in cls.__mro__ if base in (cls, RecordBatches)]
    return {name: thing for base in reversed(bases) for name, thing in vars(base).items()}


def first(docstring: str) -> str:
    """Return the first paragraph."""
    return joined(parse(docstring).text.split("\n\n")[0].splitlines())


def errors() -> Iterator[str]:
    yield "\n| class | code | when |\n|---|---|---|"
    for name in GROUPS["Errors"]:
        cls = getattr(sparklog, name)
        yield f"| `{name}` | `{cls.code}` | {first(cls.__doc__)} |"


def page(file: str) -> str:
    """Return the text of one page of `HEADS`."""
    lines = [HEADS[file]]
    for group in GROUPS_OF[file]:
        names = GROUPS[group]
        lines.append(f"\n## {group}")
        if group == "Errors":
            lines += errors()
            continue
        for name in names:
            thing = attrgetter(name)(sparklog)
            lines += of_class(name, thing) if isinstance(thing, type) else call(f"sparklog.{name}", thing)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n")


def options_page() -> str:
    """Return the page of Spark's options."""
    lines = []
    for each in OPTIONS:
        kind = ", ".join(f"`{choice}`" for choice in each.choices) or each.kind
        default = "" if each.default is None else f"`{str(each.default).lower()}`"
        aliases = f" Also as {', '.join(f'`{name}`' for name in each.aliases)}." if each.aliases else ""
        cells = (f"`{each.name}`", ", ".join(each.uses), kind, each.unit, default, each.doc + aliases, each.kafka)
        lines.append(f"| {' | '.join(cells)} |\n")
    return OPTIONS_HEAD + "".join(lines)


def pages() -> dict[str, str]:
    """Return all pages by the names of their files."""
    return {**{file: page(file) for file in HEADS}, OPTIONS_PAGE: options_page()}


if __name__ == "__main__":
    for file, text in pages().items():
        (REPOSITORY / FOLDER / file).write_text(text)
