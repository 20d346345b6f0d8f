"""Test that the site of docs/ can be built: each link and anchor exists, and pages do not load files
from other hosts.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sparklog

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
"""The workflow of every change runs `make docs`."""
EXTERNAL = re.compile(
    r"""<(?:link|script|img|iframe)[^>]*?(?:href|src)=["']?(?:https?:)?//[^>]*>|@import|url\(https?:"""
)
PROGRAMS = sorted((REPOSITORY / "examples" / "streams").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(name, reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def built(site: Path, page: Path) -> Path:
    return (site / page.parent / page.name.replace("README", "index")).with_suffix(".html")


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    pages = {
        page.relative_to(REPOSITORY / "docs").with_suffix(".html").as_posix() for page in REPOSITORY.glob("docs/*/*.md")
    }
    assert {page for page in pages if not (site / page.replace("README.html", "index.html")).exists()} == set()


def test_the_first_page_is_a_page_of_its_own(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert 'src="images/how-it-works.svg"' in page
    assert page.count("<pre") == 2
    for part in ("start", "guides", "reference", "design"):
        assert f'href="{part}/index.html"' in page


def test_a_browser_asks_no_other_host(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if EXTERNAL.search(page.read_text())] == []
    assert [sheet.name for sheet in site.rglob("*.css") if EXTERNAL.search(sheet.read_text())] == []


def test_settings_are_blocks_with_the_headers_of_their_columns(site: Path) -> None:
    page = (site / "reference" / "spark-options.html").read_text()
    assert page.count('<table class="settings">') == 1
    names = re.findall(r'<td data-label="name"><code>([^<]+)</code></td>', page)
    assert names[:2] == ["path", "subscribe"]
    assert len(names) > 60
    assert page.count('data-label="default"') == page.count('data-label="what it does"') == len(names)
    assert "display: flex" in (site / "site.css").read_text()
    assert "sparklog <wbr>compact" in (site / "reference" / "configs.html").read_text()


def test_the_reference_shows_docstrings(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text()
    for anchor in ("sparklog.open", "sparklog.Topic.append", "sparklog.transactional"):
        assert f'id="{anchor}"' in page
    assert "Raises:" in page
    assert ":::" not in page


@pytest.mark.parametrize(
    ("page", "call"), [("python", "consumer"), ("python", "producer"), ("python-maintenance", "export_kafka")]
)
def test_the_reference_shows_the_options_of_a_call(site: Path, page: str, call: str) -> None:
    text = (site / "reference" / f"{page}.html").read_text()
    shown = text.partition(f'<h3 id="sparklog.{call}"')[2].partition("<h3 id=")[0]
    signature, _, docstring = shown.partition("Parameters:")
    assert "**options" not in re.sub("<[^>]*>", "", signature)
    options = [
        item
        for item in inspect.signature(getattr(sparklog, call)).parameters.values()
        if item.kind == item.KEYWORD_ONLY
    ]
    assert len(options) > 5
    assert [item.name for item in options if f">{item.name}<" not in signature] == []
    assert [item.name for item in options if f"<code>{item.name}</code>" not in docstring] == []


def test_examples_and_the_notebook_are_pages_with_their_output(site: Path) -> None:
    for program in PROGRAMS:
        text = (
            (site / "examples" / "streams" / program.name.replace("README", "index")).with_suffix(".html").read_text()
        )
        assert "<pre" in text
    assert (site / "examples" / "streams" / "word_count.py.html").exists()
    notebook = (site / "notebooks" / "dump_segment.ipynb.html").read_text()
    pictures = re.findall(r'src="(dump_segment-\d+\.png)"', notebook)
    assert len(pictures) >= 20
    assert all((site / "notebooks" / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_the_search_finds_words_of_all_parts(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for words in ("murmur2", "last stable offset", "WordCountDemo", "sparklog.transactional"):
        assert words in index


def test_the_search_splits_texts_into_the_words_that_people_type(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    words: dict[str, set[str]] = {}
    for entry in index["docs"]:
        for word in re.split(index["config"]["separator"], f"{entry['title']} {entry['text']}"):
            words.setdefault(word.lower(), set()).add(entry["location"].partition("#")[0])
    for word, page in {
        "data_source_not_found": "guides/errors.html",
        "brokenpipeerror": "guides/errors.html",
        "maxoffsetspertrigger": "reference/spark-options.html",
        "retention.ms": "reference/configs.html",
        "startingoffsets": "reference/spark-options.html",
        "inlinerecords": "guides/upgrade.html",
    }.items():
        assert page in words[word], word
    titles = {entry["location"]: entry["title"] for entry in index["docs"]}
    for page, word in {
        "topics": "delete",
        "docker": "Docker",
        "retention": "Retention",
        "backup": "roll back",
        "upgrade": "Upgrade",
    }.items():
        assert word in titles[f"guides/{page}.html"]
    assert "Quick start" in titles["start/index.html"]


def test_the_search_leaves_out_pages_for_contributors(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    pages = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {
        page for page in pages if page.startswith("tests/") or page.endswith(".py.html") or "LICENSE" in page
    } == set()
    boosts = {entry["location"]: entry.get("boost", 1) for entry in index["docs"]}
    assert boosts["CHANGELOG.html"] < boosts["design/architecture.html"] < boosts["guides/retention.html"]
    assert boosts["reference/kafka-format.html"] < boosts["reference/spark-options.html"]
