"""Test the pages of docs/ and the README: links and anchors exist, numbers and tables match the code, and paths exist.

test_readme.py runs the snippets of the README and of docs/start. The tests of each package run the snippets of its
guide.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sparklog.format import transaction_index
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from tests.test_architecture import LAYERS, PACKAGES

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples" / "streams"
FACES = [REPOSITORY / name for name in ("README.md", "ROADMAP.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*FACES, *sorted(DOCS.rglob("*.md")), *sorted(EXAMPLES.glob("*.md"))]
PARTS = ("start", "guides", "reference", "design")
GENERATED = {"configs.md", "spark-options.md"}

PICTURE_BYTES = 150_000

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
REPOSITORY_PATH = re.compile(
    r"`((?:sparklog|pyspark_sparklog|tests|conf|jobs|docs|notebooks|examples|benchmarks)/[\w./-]+)`"
)


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def prose(page: Path) -> str:
    """Return the text of a page without fenced blocks."""
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
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


def first_cells(page: Path) -> list[str]:
    """Return the first cell of each table row of a page, without heading rows."""
    rows = [line for line in prose(page).split("\n") if line.startswith("|")]
    return [row.strip("|").split("|")[0].strip() for row in rows]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_figures_of_the_readme_are_those_of_performance() -> None:
    table = PAGES[0].read_text().partition("## What sparklog adds")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.split("\n") if "`python -m benchmarks" in line]
    figures = [number for row in rows for number in re.findall(r"\d+(?:\.\d+)?", row[2])]
    assert len(figures) >= 10
    measured = (DOCS / "design" / "performance.md").read_text()
    assert [number for number in figures if number not in measured] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pictures_exist_and_have_a_text_for_those_who_cannot_see_them(page: Path) -> None:
    pictures = PICTURE.findall(prose(page))
    assert [path for text, path in pictures if not text or not (page.parent / path).exists()] == []


def test_pictures_are_shown() -> None:
    shown = {(page.parent / path).resolve() for page in PAGES for _, path in PICTURE.findall(page.read_text())}
    unused = {picture.name for picture in (DOCS / "images").iterdir() if picture not in shown}
    assert unused <= {"logo.svg", "favicon.svg"}  # for the site's header


def test_drawings_have_a_title_and_are_legible_on_dark_pages() -> None:
    for drawing in {path for page in PAGES for _, path in PICTURE.findall(page.read_text()) if path.endswith(".svg")}:
        if not Path(drawing).name.startswith("peers-"):
            picture = ElementTree.parse(DOCS / "images" / Path(drawing).name).getroot()
            assert picture.findtext(f"{SVG}title"), drawing
            assert picture.findtext(f"{SVG}desc"), drawing
            assert "prefers-color-scheme: dark" in (picture.findtext(f"{SVG}style") or ""), drawing
            assert picture.find(f"{SVG}rect[@class='page']") is not None, f"{drawing} has no background of its own"


def test_the_upgrade_guide_has_every_feature_under_its_release() -> None:
    table = (
        (DOCS / "reference" / "compatibility.md").read_text().partition("| Feature | Since |")[2].partition("\n\n")[0]
    )
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.split("\n")[2:]]
    features = {row[0]: row[1] for row in rows if row[0]}
    assert len(features) >= 7
    sections = re.split(r"^## ", (DOCS / "guides" / "upgrade.md").read_text(), flags=re.MULTILINE)
    named = {name: section.split("\n")[0] for section in sections for name in features if f"feature {name}" in section}
    # Topics have this feature by default since the release after the one that introduced it.
    assert named == {**features, "`inlineRecords`": "0.5"}


def test_pictures_are_small() -> None:
    pictures = list((DOCS / "images").iterdir())
    assert pictures
    assert [name(picture) for picture in pictures if picture.stat().st_size > PICTURE_BYTES] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_other_hosts_are_whole(page: Path) -> None:
    links = [link for link in LINK.findall(prose(page)) if re.match(r"[a-z]+:", link)]
    assert [link for link in links if not re.fullmatch(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w./#-]*)?", link)] == []


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_an_introduction_and_lists_its_pages(part: str) -> None:
    index = DOCS / part / "README.md"
    introduction = index.read_text().split("\n\n")[1]
    assert re.match(r"\w", introduction), "the first paragraph says what the pages of this part are for"
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


def test_the_architecture_page_has_every_package() -> None:
    cells = " ".join(first_cells(DOCS / "design" / "architecture.md"))
    named = (name for name in PACKAGES if name)
    assert [name for name in named if not re.search(rf"`sparklog/{name.replace('.', '/')}(\.py)?`", cells)] == []


def test_the_picture_of_packages_is_that_of_the_layers() -> None:
    page = (DOCS / "design" / "architecture.md").read_text()
    picture = [
        line[:80] for line in page.partition("## Packages")[2].split("```")[1].split("\n")
    ]  # The cells without remarks.

    def line_of(name: str) -> int:
        shown = re.compile(rf"(^| ){name.removeprefix('log.') or 'import sparklog'}( |$)")
        return next(number for number, line in enumerate(picture) if shown.search(line))

    for below, above in pairwise(LAYERS):
        assert max(map(line_of, above)) < min(map(line_of, below))


def test_sizes_of_kafkas_files_are_the_codes() -> None:
    text = (DOCS / "reference" / "kafka-format.md").read_text()
    assert f"has a header of {HEADER_BYTES} bytes" in text
    for suffix, module in ((".index", OffsetIndex), (".timeindex", TimeIndex), (".txnindex", transaction_index)):
        assert f"| `{suffix}` | {module.ENTRY_BYTES} |" in text


def test_the_default_retention_is_named_where_records_are_written_or_imported() -> None:
    for page in ("README.md", "docs/start/spark.md", "docs/guides/import-from-kafka.md", "docs/guides/mirror-kafka.md"):
        text = " ".join((REPOSITORY / page).read_text().split())
        assert re.search(r"seven days.{0,60}record('s)? time|record('s)? time.{0,60}seven days", text), page
