"""The pages of docs/ and the README: links lead somewhere, pages are short, headings use plain words, paths exist.

Snippets of the README and of docs/start are run by test_readme.py, those of guides by the tests of their subjects.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from sparklog.format import transaction_index
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from tests.test_architecture import LAYERS, ROOMS

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples" / "streams"
FACES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*FACES, *sorted(DOCS.rglob("*.md")), *sorted(EXAMPLES.glob("*.md"))]
PARTS = ("start", "guides", "reference", "design")
GENERATED = {"configs.md", "spark-options.md"}

PAGE_LINES = 300
README_LINES = 120
PICTURE_BYTES = 150_000
SENTENCE_WORDS = 30
"""Words between two stops (a colon and a semicolon count as stops)."""

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
REPOSITORY_PATH = re.compile(
    r"`((?:sparklog|pyspark_sparklog|tests|conf|jobs|docs|notebooks|examples|benchmarks)/[\w./-]+)`"
)
RIDDLES = re.compile(r"\b(anew|lies|lying|goes by|nobody|somebody|whoever|stands)\b")
"""Words of another language's order: again, is, follows, no process."""
RETIRED = "Retired, not used in headings here:"


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = (re.sub(r"[^\w -]", "", heading) for heading in HEADING.findall(prose(page)))
    return {heading.lower().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def paragraphs(page: Path) -> list[str]:
    """Paragraphs, list items and cells of tables, each as one line."""
    found: list[list[str]] = [[]]
    for line in prose(page).split("\n"):
        text = line.strip()
        if text.startswith("|"):
            found += [[cell] for cell in re.split(r"(?<!\\)\|", text)]
            found.append([])
            continue
        if not text or re.match(r"(\* |\d+\. |#+ |    )", line):
            found.append([])
        found[-1].append(re.sub(r"^(\*|\d+\.|#+) ", "", text))
    return [" ".join(lines) for lines in found]


def sentences(page: Path) -> list[str]:
    texts = (re.sub(r"`[^`]*`", "X", LINK.sub("]", paragraph)) for paragraph in paragraphs(page))
    return [sentence for text in texts for sentence in re.split(r"(?<=[.!?:;])(?:\*\*)?\s+", text)]


def retired_words() -> set[str]:
    """The words that the glossary retires."""
    text = (DOCS / "reference" / "glossary.md").read_text().partition(RETIRED)[2]
    return {" ".join(word.split()) for word in text.strip().rstrip(".").split(",")}


def first_cells(page: Path) -> list[str]:
    """The first cell of each row of the page's tables, without the rows of headings."""
    rows = [line for line in prose(page).split("\n") if line.startswith("|")]
    return [row.strip("|").split("|")[0].strip() for row in rows]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_and_sentences_are_short(page: Path) -> None:
    assert page.name in GENERATED or page.read_text().count("\n") <= PAGE_LINES
    assert page.name in GENERATED or [text for text in sentences(page) if len(text.split()) > SENTENCE_WORDS] == []


def test_the_readme_is_short() -> None:
    assert PAGES[0].read_text().count("\n") <= README_LINES


def test_figures_of_the_readme_are_those_of_performance() -> None:
    table = PAGES[0].read_text().partition("## What others do not do")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.split("\n") if "`python -m benchmarks" in line]
    figures = [number for row in rows for number in re.findall(r"\d+(?:\.\d+)?", row[2])]
    assert len(figures) >= 10
    measured = (DOCS / "design" / "performance.md").read_text()
    assert [number for number in figures if number not in measured] == []


def test_pictures_are_small() -> None:
    pictures = list((DOCS / "images").iterdir())
    assert pictures
    assert [name(picture) for picture in pictures if picture.stat().st_size > PICTURE_BYTES] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_other_hosts_are_whole(page: Path) -> None:
    links = [link for link in LINK.findall(prose(page)) if re.match(r"[a-z]+:", link)]
    assert [link for link in links if not re.fullmatch(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w./#-]*)?", link)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_prose_is_in_plain_words(page: Path) -> None:
    if page.name not in GENERATED | {"glossary.md"}:
        quoted = re.compile(r'`[^`]*`|"[^"]*"')
        assert RIDDLES.findall(quoted.sub("", prose(page))) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_headings_use_no_retired_words(page: Path) -> None:
    retired = retired_words()
    assert len(retired) >= 10
    assert [
        heading
        for heading in HEADING.findall(prose(page))
        for word in retired
        if re.search(rf"\b{word}s?\b", heading, re.IGNORECASE)
    ] == []


def test_the_glossary_has_twenty_words() -> None:
    assert len(first_cells(DOCS / "reference" / "glossary.md")) - 2 == 20


@pytest.mark.parametrize("part", PARTS)
def test_each_part_says_who_it_is_for_and_lists_its_pages(part: str) -> None:
    index = DOCS / part / "README.md"
    assert re.search(r"^For ", index.read_text(), re.MULTILINE)
    listed = {link.partition("#")[0] for link in LINK.findall(index.read_text())}
    format_pages = set(LINK.findall((DOCS / "reference" / "format.md").read_text())) if part == "reference" else set()
    pages = {page.name for page in (DOCS / part).iterdir()} - {"README.md"}
    assert pages <= listed | format_pages
    assert f"({part}/README.md)" in (DOCS / "README.md").read_text()
    assert f"(docs/{part}/README.md)" in PAGES[0].read_text()


def test_no_page_lies_outside_the_parts() -> None:
    assert {entry.name for entry in DOCS.iterdir()} == {*PARTS, "README.md", "images"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    assert [path for path in REPOSITORY_PATH.findall(page.read_text()) if not (REPOSITORY / path).exists()] == []


def test_docstrings_and_comments_name_pages_that_exist() -> None:
    named = re.compile(r"\bdocs/[\w./-]+\.md\b")
    files = [
        file
        for folder in ("sparklog", "tests", "conf", "benchmarks", "jobs")
        for file in (REPOSITORY / folder).rglob("*")
        if file.is_file() and file.suffix in {".py", ".properties", ".conf", ""}
    ]
    missing = {
        (name(file), page)
        for file in files
        for page in named.findall(file.read_text())
        if not (REPOSITORY / page).exists()
    }
    assert missing == set()


def test_the_architecture_page_has_every_room() -> None:
    cells = " ".join(first_cells(DOCS / "design" / "architecture.md"))
    assert {room for room in ROOMS if not re.search(rf"`sparklog/{room.replace('.', '/')}(\.py)?`", cells)} == set()


def test_the_picture_of_rooms_is_that_of_the_layers() -> None:
    page = (DOCS / "design" / "architecture.md").read_text()
    picture = [line[:80] for line in page.partition("## Rooms")[2].split("```")[1].split("\n")]  # without the remarks

    def line_of(room: str) -> int:
        shown = re.compile(rf"(^| ){room.removeprefix('log.')}( |$)")
        return next(number for number, line in enumerate(picture) if shown.search(line))

    for below, above in pairwise(LAYERS):
        assert max([line_of(room) for room in above]) < min([line_of(room) for room in below])


def test_sizes_of_kafkas_files_are_the_codes() -> None:
    text = (DOCS / "reference" / "kafka-format.md").read_text()
    assert f"has a header of {HEADER_BYTES} bytes" in text
    for suffix, module in ((".index", OffsetIndex), (".timeindex", TimeIndex), (".txnindex", transaction_index)):
        assert f"| `{suffix}` | {module.ENTRY_BYTES} |" in text


def test_the_default_retention_is_named_where_records_are_written_or_imported() -> None:
    for page in ("README.md", "docs/start/spark.md", "docs/guides/import-from-kafka.md", "docs/guides/mirror-kafka.md"):
        assert "seven days by the record's time" in " ".join((REPOSITORY / page).read_text().split()), page
