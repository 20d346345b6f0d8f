"""Pages of the documentation site that are not in docs/, and the order of all pages. This is a hook of mkdocs.

docs/README.md is the first page. If a page links to another file of the repository, this file is added to the site:
text as a page, a notebook with its stored outputs, and a program or configuration file as a code block. Links that work
on a Git host are replaced by links within the site. The hook is configured in mkdocs.yml.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]
HOME = "docs/README.md"
README = "README.md"
"""The repository's front page for git hosts. The site does not contain it: links to it lead to the first page."""
PARTS = {
    "docs/start": "Start",
    "docs/guides": "Guides",
    "examples/streams": "Examples",
    "docs/reference": "Reference",
    "docs/design": "Design",
}
NOTEBOOK = "notebooks/dump_segment.ipynb"
PROJECT = {
    "ROADMAP.md": "Roadmap",
    "CHANGELOG.md": "Changes",
    "CONTRIBUTING.md": "Contribute",
    "SECURITY.md": "Security",
}

STYLE = Path(__file__).with_name("site.css")

NOT_SEARCHED = ("tests/", "LICENSE")
"""Path prefixes of pages for contributors. These pages are not searched, because they would rank higher than guides."""
SEARCH_WEIGHTS = {
    "docs/guides/": 2,
    "docs/start/": 1.5,
    "docs/reference/spark-options.md": 4,
    "docs/reference/configs.md": 4,
    "docs/reference/glossary.md": 2,
    "docs/reference/kafka-format.md": 0.5,
    "docs/reference/format-": 0.7,
    "docs/design/": 0.7,
    "CONTRIBUTING.md": 0.5,
    "notebooks/": 0.3,
    "CHANGELOG.md": 0.1,
}
"""Search weights of pages by path prefix. Other pages have weight 1."""

FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)
HEADER = re.compile(r"<th[^>]*>(.*?)</th>")
CODE = re.compile(r"(?<!<pre><code>)(?<!</span><code>)(?<=<code>)[^<]+(?=</code>)")
LONG_WORD = 40
CELL = re.compile(r"<td[^>]*>")
DESCRIPTION = "what it does"
"""The header of the column that tables of settings have."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh", ".properties": "properties"}


def in_site(path: str) -> str:
    """Return the site path of a file, for example `guides/index.md` for docs/guides/README.md."""
    if path in (HOME, README):
        return "index.md"
    name = path.removeprefix("docs/")
    folder, file = posixpath.split(name)
    if file == "README.md":
        return posixpath.join(folder, "index.md")
    if name.endswith((".md", ".png", ".svg")):
        return name
    return f"{name}.md"


def target(page: str, link: str) -> str | None:
    """Return the file of the repository that a link refers to, or None for the same page or another host."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def links(page: str, text: str) -> Iterator[str]:
    """Yield the files that a page links to."""
    for part in FENCE.split(text)[::2]:
        for link in LINK.findall(part):
            path = target(page, link)
            if path is not None:
                yield path


def with_links_of_site(page: str, text: str) -> str:
    """Return the text with links within the site."""

    def changed(match: re.Match[str]) -> str:
        path = target(page, match[1])
        if path is None or not (REPOSITORY / path).is_file():
            return match[1]  # mkdocs warns about missing files
        _, mark, anchor = match[1].partition("#")
        return posixpath.relpath(in_site(path), posixpath.dirname(in_site(page)) or ".") + mark + anchor

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(changed, part) for part in parts[::2]]
    return "".join(parts)


def notebook(path: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page, and its images by name. Images are stored next to the page."""
    lines: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads((REPOSITORY / path).read_text())["cells"]:
        source = "".join(cell["source"])
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"{PurePosixPath(path).stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                lines.append(f"![Plot of the cell above]({name})")
            elif "text/html" in data:
                lines.append(re.sub(r"\n\s*\n", "\n", "".join(data["text/html"])))
            else:
                lines.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(lines) + "\n", pictures


def page_of(path: str) -> tuple[str, dict[str, bytes]]:
    """Return a file of the repository as a page, and its images."""
    file = REPOSITORY / path
    if file.suffix == ".ipynb":
        return notebook(path)
    text = file.read_text()
    if file.suffix == ".md":
        return text, {}
    return f"# {file.name}\n\n`{path}`\n\n```{LANGUAGES.get(file.suffix, 'text')}\n{text}```\n", {}


def menu(part: str) -> list[Any]:
    """Return the pages of a section in the order of its index. Each heading of the index starts a group."""
    index = f"{part}/README.md"
    pages: list[Any] = [in_site(index)]
    seen = {index}
    for section in re.split(r"^(?=## )", (REPOSITORY / index).read_text(), flags=re.MULTILINE):
        group = [
            in_site(path)
            for path in with_details(links(index, section))
            if path.startswith(f"{part}/") or path == NOTEBOOK
        ]
        group = [page for page in dict.fromkeys(group) if page not in seen]
        seen |= set(group)
        if section.startswith("## ") and group:
            pages.append({section.partition("\n")[0].removeprefix("## "): group})
        else:
            pages += group
    return pages


def with_details(paths: Iterable[str]) -> Iterator[str]:
    """Yield pages, each followed by linked pages with the same prefix, such as format-commits.md after format.md."""
    for path in paths:
        if path.endswith(".md") or path == NOTEBOOK:
            yield path
            prefix = path.removesuffix(".md") + "-"
            yield from (link for link in links(path, (REPOSITORY / path).read_text()) if link.startswith(prefix))


def search_options(path: str) -> dict[str, Any]:
    """Return Material's search options for the page of a file. Programs are not searched."""
    if path.startswith(NOT_SEARCHED) or not path.endswith((".md", ".ipynb")):
        return {"exclude": True}
    return {"boost": next((weight for prefix, weight in SEARCH_WEIGHTS.items() if path.startswith(prefix)), 1)}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/ and all pages that other pages link to, and set the order of pages."""
    files.append(File.generated(config, "site.css", content=STYLE.read_text()))
    indexes = [f"{part}/README.md" for part in PARTS]
    for index in (HOME, *indexes):
        file = files.get_file_from_path(index.removeprefix("docs/"))
        if file is not None:
            files.remove(file)  # otherwise mkdocs would use this file as the index of the site
    in_menu = [HOME, *PROJECT, *indexes]
    paths = in_menu + [f"docs/{file.src_uri}" for file in files if file.is_documentation_page()]
    for path in paths:  # the loop adds elements
        if path == README:
            continue
        name = in_site(path)
        text, pictures = page_of(path)
        if files.get_file_from_path(name) is None:
            inclusion = InclusionLevel.INCLUDED if path in in_menu else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, name, content=text, inclusion=inclusion))
        for picture, content in pictures.items():
            files.append(File.generated(config, posixpath.join(posixpath.dirname(name), picture), content=content))
        origins[name] = path
        linked = [link for link in links(path, text) if in_site(link).endswith(".md")]
        paths += [link for link in dict.fromkeys(linked) if link not in paths and (REPOSITORY / link).is_file()]
    parts = [{name: menu(part)} for part, name in PARTS.items()]
    config.nav = [{"Home": "index.md"}, *parts, {"Project": [{name: in_site(path)} for path, name in PROJECT.items()]}]
    return files


origins: dict[str, str] = {}
"""Files of the repository by the names of their pages in the site."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replace the links of a page and set its search weight. The first page has no sidebars."""
    path = origins[page.file.src_uri]
    page.meta["search"] = search_options(path)
    if path == HOME:
        page.meta["hide"] = ["navigation", "toc"]
    return with_links_of_site(path, markdown)


def on_page_content(page_html: str, **_: object) -> str:
    """Make code and tables fit into a page of any width, with site.css."""
    return TABLE.sub(lambda match: with_labels(match[0]), CODE.sub(lambda match: with_breaks(match[0]), page_html))


def with_breaks(code: str) -> str:
    """Return code of a sentence or a cell with the positions at which a line may end; site.css forbids all others.

    These are blanks and commas, and, in words that do not fit on a phone, also slashes, dots, hyphens and underscores.
    """
    words = re.findall(r"[^\s,]+,*\s*|[\s,]+", code)
    parts = (re.split(r"(?<=[/._=-])(?=.)", word) if len(word) > LONG_WORD else [word] for word in words)
    return "<wbr>".join(itertools.chain.from_iterable(parts))


def with_labels(table: str) -> str:
    """Return a table of settings with the header of its column in each cell; return other tables unchanged."""
    headers = HEADER.findall(table)
    if DESCRIPTION not in headers or len(headers) < 4:
        return table
    labels = itertools.cycle(html.escape(header) for header in headers)
    cells = CELL.sub(lambda match: f'<td data-label="{next(labels)}">', table)
    return cells.replace("<table>", '<table class="settings">')
