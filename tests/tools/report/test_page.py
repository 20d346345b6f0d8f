"""The page is well-formed and self-contained, contains all topics and statistics, and escapes all names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest

from sparklog.common.units import ago, day_text, duration, size_text, time_text
from sparklog.tools.report.page import MAX_PARTITIONS, as_html, by_topic, chart, numbers
from sparklog.tools.report.report_data import (
    ATTENTION,
    HOURS,
    INFORMATION,
    Activity,
    GroupFacts,
    GroupPartition,
    Note,
    OpenTransaction,
    PartitionFacts,
    PlannedWork,
    Removal,
    RootReport,
    TopicFacts,
)

NOW_MS = 1_700_000_000_000
HOSTILE = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;"
VOID = frozenset({"meta", "input", "br", "img", "link", "hr"})


def topic(name: str = "orders", sizes: tuple[int, ...] = (1000, 3000), **changes: object) -> TopicFacts:
    parts = tuple(
        PartitionFacts(n, 10, 90 + n, 100 + n, 80, nbytes, NOW_MS - 7_200_000, NOW_MS - 5_000, 12, 7)
        for n, nbytes in enumerate(sizes)
    )
    found = TopicFacts(name, "id-" + "x" * 19, False, "delete", {"retention.ms": "86400000"}, parts,
                       Activity(42, NOW_MS - 1000, 3, 17, 10))  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def report(*topics: TopicFacts, **changes: object) -> RootReport:
    found = RootReport("/data/log", "root", NOW_MS, topics, (), (), (), (), ())
    return replace(found, **changes)  # type: ignore[arg-type]


@dataclass
class Page(HTMLParser):
    """A strict parser of a page: each tag must be closed in its parent.

    Tables are rows of cell texts. A table in a cell is a separate table, and the row that contains it is skipped.
    """

    stack: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    @classmethod
    def of(cls, text: str) -> Page:
        page = cls()
        page.feed(text)
        page.close()
        assert not page.stack
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "table":
            self._open.append(dict(attrs).get("id") or f"table-{len(self.tables)}")
            self.tables[self._open[-1]] = []
        elif tag == "tr":
            self.tables[self._open[-1]].append([])
        elif tag in ("td", "th"):
            self.tables[self._open[-1]][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect", tag

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, tag
        assert self.stack.pop() == tag
        if tag == "table":
            self._open.pop()
            if self._open:
                self.tables[self._open[-1]].pop()
                self.tables[self._open[-1]].append([])

    def handle_data(self, data: str) -> None:
        if "script" not in self.stack and "style" not in self.stack:
            self.texts.append(data)
        row = self.tables[self._open[-1]][-1] if self._open and self.tables[self._open[-1]] else []
        if row and ("td" in self.stack or "th" in self.stack):
            row[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def rows(self, table: str) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self.tables[table][1:] if row]


def everything() -> RootReport:
    """Return a report with a row in each table and names that contain HTML."""
    parts = (GroupPartition(HOSTILE, 0, 5, 0, 10, 5, 90.0), GroupPartition(HOSTILE, 1, None, 0, 10, None, None))
    return report(
        topic(HOSTILE, configs={"x": HOSTILE}, cleanup_policy=HOSTILE),
        location=HOSTILE,
        groups=(GroupFacts(HOSTILE, "Stable", HOSTILE, parts), GroupFacts("none", "Empty", None, ())),
        held_back=(
            OpenTransaction(HOSTILE, 1, HOSTILE, 3, 9, 4000, 60_000),
            OpenTransaction("t", 0, "p", 3, 9, None, None),
        ),
        doing=(
            PlannedWork(HOSTILE, 0, "merge", 10, True, HOSTILE),
            PlannedWork(HOSTILE, 1, "compact", 0, False, HOSTILE),
        ),
        removals=(Removal(HOSTILE, "commit", HOSTILE, 3, 4000),),
        notes=(Note(ATTENTION, HOSTILE, HOSTILE), Note(INFORMATION, "", HOSTILE)),
    )


@pytest.mark.parametrize("kind", ["root", "kafka"])
def test_names_are_escaped(kind: str) -> None:
    found = everything()
    if kind == "kafka":
        found = replace(
            found,
            kind=kind,
            groups=None,
            doing=None,
            removals=None,
            topics=tuple(
                replace(
                    each,
                    activity=None,
                    configs=None,
                    cleanup_policy=None,
                    partitions=tuple(
                        replace(part, records=None, slices=None, unsealed=None) for part in each.partitions
                    ),
                )
                for each in found.topics
            ),
        )
    text = as_html(found)
    page = Page.of(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in page.tags]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(HOSTILE) >= (8 if kind == "root" else 6)
    assert "alert('x')" not in text


def test_page_loads_no_other_files() -> None:
    text = as_html(everything())
    page = Page.of(text)
    assert "://" not in text
    assert not {"link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in text
    assert "url(" not in text


def test_links_have_targets_and_ids_are_unique() -> None:
    page = Page.of(as_html(report(topic("a"), topic("b"), topic("c"), topic("d"))))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(attributes["href"] or "")[1:] for tag, attributes in page.tags if tag == "a"} <= set(ids)


def test_row_of_a_topic_contains_its_statistics() -> None:
    page = Page.of(as_html(report(topic("orders", held := (1_500_000, 500_000)))))
    [row] = page.rows("topic-table")
    assert row[:4] == ["orders", "2", "160", "2.0 MB"]
    assert row[4].endswith("1.5×")
    assert row[5:] == ["2 h ago", "5 s ago", "–", "delete", "17", "14", "20"]
    details = next(rows for name, rows in page.tables.items() if rows and rows[0][0] == "Partition" and name)
    assert [cell.strip() for cell in details[1]] == [
        "0", "10", "90", "100", "80", "1.5 MB", "", "2 h ago", "5 s ago", "–", "12", "7",
    ]  # fmt: skip
    assert "retention.ms=86400000" in page.text
    assert sum(held) == 2_000_000


@pytest.mark.parametrize(
    ("parts", "configs", "policy", "shown"),
    [
        ([(101_000, 1), (0, NOW_MS + 9)], {}, "delete", "next run:101,000 records"),
        ([(1, None), (0, None)], {}, "delete", "next run:1 record"),
        ([(0, NOW_MS + 7_200_000), (0, NOW_MS + 9_000_000)], {}, "delete", "in 2 h"),
        ([(0, None), (0, None)], {}, "compact", "never"),
        ([(0, None), (0, None)], {"retention.ms": "-1"}, "delete", "never"),
        ([(0, None), (0, None)], {"retention.ms": "-1", "retention.bytes": "9"}, "delete", "–"),
        ([(0, None), (0, None)], {"retention.ms": "9"}, "delete", "–"),
    ],
)
def test_topics_have_a_column_for_the_next_expiry(
    parts: list[tuple[int, int | None]], configs: dict[str, str], policy: str, shown: str
) -> None:
    base = topic(configs=configs, cleanup_policy=policy)
    both = [
        replace(part, expiring=expiring, expires_ms=due)
        for part, (expiring, due) in zip(base.partitions, parts, strict=True)
    ]
    page = Page.of(as_html(report(replace(base, partitions=tuple(both)))))
    assert page.rows("topic-table")[0][7] == shown


def test_hourly_bars_have_a_text_with_the_same_values() -> None:
    commits, nbytes = [0] * HOURS, [0] * HOURS
    commits[-1], commits[-3], nbytes[0] = 3, 6, 1_500_000
    base = topic(bytes_by_hour=tuple(nbytes))
    assert base.activity is not None
    busy = replace(base, activity=replace(base.activity, commits_by_hour=tuple(commits)))
    text = as_html(report(busy))
    page = Page.of(text)
    assert "total 9; peak 6 in the hour from 2023-11-14 20:00:00" in page.text
    assert "total 1.5 MB; peak 1.5 MB in the hour from 2023-11-11 23:00:00" in page.text
    drawn = chart(commits, NOW_MS)
    assert drawn is not None
    assert drawn.path == "M691 60v-60.0h8v60.0z" + "M711 60v-30.0h8v30.0z"
    assert [(round(percent), day_text(ms)) for percent, ms in drawn.days] == [
        (1, "Nov 12"),
        (35, "Nov 13"),
        (68, "Nov 14"),
    ]
    assert text.count("<path") == 2
    assert "<path" not in as_html(report(topic()))
    # With several topics, the bars of a topic follow its row.
    assert as_html(report(busy, replace(busy, topic="other"))).count("<path") == 6


def test_partitions_follow_the_row_of_their_topic() -> None:
    names = [chr(97 + number) for number in range(4)]
    page = Page.of(as_html(report(*(topic(name) for name in names))))
    opened = [attributes for tag, attributes in page.tags if tag == "details" and attributes.get("class") == "opener"]
    assert len(opened) == 4
    assert not any("open" in attributes for attributes in opened)
    assert "tbody:has(details.opener[open]) tr.more" in as_html(report())
    few = Page.of(as_html(report(topic())))
    assert [attributes for tag, attributes in few.tags if tag == "details" and "open" in attributes]


def test_notes_link_to_topics_and_format_commands() -> None:
    notes = (*(Note(ATTENTION, f"t{n}", "is late") for n in range(24)),
             Note(ATTENTION, "orders", "run `sparklog retain` now"),
             Note(INFORMATION, "gone", HOSTILE))  # fmt: skip
    page = Page.of(text := as_html(report(topic(), notes=notes)))
    assert '<a href="#topic-1"><b>orders</b></a>: run <code>sparklog retain</code> now' in text
    for shown in ("Needs attention", "Glossary", "5 more", "For information: 1", HOSTILE):
        assert shown in page.text
    only = Page.of(as_html(report(topic(), notes=notes[-1:])))
    assert "Nothing needs attention." in only.text


def test_notes_of_a_topic_are_in_one_box() -> None:
    notes = [Note(ATTENTION, name, f"group {n} lags") for n in range(8) for name in ("orders", "clicks")]
    page = Page.of(text := as_html(report(topic(), notes=tuple(notes))))
    assert text.count('<li class="attention">') == 2
    assert text.count("<li>group ") == 16
    assert page.text.count("3 more") == 2


def test_page_has_rows_for_groups_transactions_and_maintenance() -> None:
    page = Page.of(as_html(everything()))
    assert page.rows("group-table") == [
        [HOSTILE, "Stable", HOSTILE, "2", "5", "", "5", "90 s", HOSTILE],
        ["none", "Empty", "no committed offsets", "–"],
    ]
    assert page.rows("group-partitions") == [
        [HOSTILE, HOSTILE, "0", "5", "0", "10", "5", "90 s"],
        [HOSTILE, HOSTILE, "1", "–", "0", "10", "–", "–"],
    ]
    assert page.rows("due-table") == [[HOSTILE, "merge", "0", "10 B", HOSTILE]]
    assert page.rows("waiting-table") == [[HOSTILE, "compact", "1", "0 B", HOSTILE]]
    tables = [rows for rows in page.tables.values() if rows[0][0] == "Topic" and "Transaction" in rows[0]]
    assert [[" ".join(cell.split()) for cell in row] for row in tables[0][1:]] == [
        [HOSTILE, "1", HOSTILE, "3", "6", "4 s", "60 s"],
        ["t", "0", "p", "3", "6", "–", "–"],
    ]


def test_page_of_an_empty_root() -> None:
    page = Page.of(as_html(report()))
    for text in ("There are no topics here yet", "Nothing needs attention", "nothing holds readers back",
                 "Nothing is due", "No consumer group has committed"):  # fmt: skip
        assert text in page.text
    assert "Made by sparklog." in page.text
    assert "Consumer groups" not in Page.of(as_html(report(groups=None))).text


@pytest.mark.sweep
def test_page_of_a_thousand_topics_has_a_search_field() -> None:
    topics = tuple(topic(f"topic-{number:04}", (number, 5, 5, 5)) for number in range(1000))
    text = as_html(report(*topics))
    assert len(text) < 6_000_000
    page = Page.of(text)
    assert [row[0] for row in page.rows("topic-table")] == [each.topic for each in topics]
    assert {"data-table": "topic-table"}.items() <= dict(
        next(attributes for tag, attributes in page.tags if tag == "input")
    ).items()
    assert as_html(report(*topics)) == text


def test_only_the_largest_of_many_partitions_are_listed() -> None:
    page = Page.of(as_html(report(topic("wide", tuple(range(MAX_PARTITIONS + 50))))))
    rows = next(rows for name, rows in page.tables.items() if rows[0][0] == "Partition")
    assert [int(row[0]) for row in rows[1:]] == list(range(50, MAX_PARTITIONS + 50))
    assert f"The {MAX_PARTITIONS} largest of {MAX_PARTITIONS + 50}" in page.text


def test_identical_partitions_are_combined_into_one_row() -> None:
    items = [PlannedWork("t", n, "merge", 10 + n, True, "5 slices into 1") for n in (0, 1, 2, 7)]
    items.append(PlannedWork("t", 3, "seal", 5, True, "full"))
    items += [PlannedWork("u", n, "merge", n, True, f"{n} slices into 1") for n in (4, 9)]
    found = [(each.topic, each.action, numbers(each.partitions), each.bytes, each.why) for each in by_topic(items)]
    assert found == [
        ("t", "merge", "0-2, 7", 50, "5 slices into 1"),
        ("t", "seal", "3", 5, "full"),
        ("u", "merge", "4, 9", 13, "partition 9: 9 slices into 1"),
    ]


def test_sizes_and_durations_are_human_readable() -> None:
    assert [size_text(number) for number in (0, 999, 1500, 2_500_000, 7.2e9, 3e12, None)] == [
        "0 B", "999 B", "1.5 kB", "2.5 MB", "7.2 GB", "3.0 TB", "–",
    ]  # fmt: skip
    assert [duration(ms) for ms in (0, 90_000, 3_000_000, 7_200_000, 5 * 86_400_000, 9e10, None)] == [
        "0 s", "90 s", "50 min", "2 h", "5 days", "3 years", "–",
    ]  # fmt: skip
    assert ago(NOW_MS - 7_200_000, NOW_MS) == "2 h ago"
    assert ago(NOW_MS + 7_200_000, NOW_MS) == "in 2 h"
    assert time_text(NOW_MS) == "2023-11-14 22:13:20"
    assert time_text(2**62) == f"{2**62:,} ms"
    assert time_text(None) == "–"
