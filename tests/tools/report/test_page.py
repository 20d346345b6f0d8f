"""The page: well-formed, alone, with every topic and figure, and nothing that a name could smuggle in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest

from sparklog.tools.report.facts import (
    ATTENTION,
    INFORMATION,
    Activity,
    Doing,
    GroupFacts,
    GroupPartition,
    HeldBack,
    Note,
    PartitionFacts,
    Removal,
    Report,
    TopicFacts,
)
from sparklog.tools.report.gather import MANY_COMMITS, MANY_UNSEALED, health
from sparklog.tools.report.page import MOST_PARTITIONS, ago, as_html, by_topic, duration, numbers, size, time

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


def report(*topics: TopicFacts, **changes: object) -> Report:
    found = Report("/data/log", "root", NOW_MS, topics, (), (), (), (), ())
    return replace(found, **changes)  # type: ignore[arg-type]


@dataclass
class Page(HTMLParser):
    """Reads a page strictly: every tag is closed where it was opened. Tables come as rows of cells' texts."""

    stack: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    _table: str = ""

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
            self._table = dict(attrs).get("id") or f"table-{len(self.tables)}"
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect", tag

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, tag
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.stack and "style" not in self.stack:
            self.texts.append(data)
        if "td" in self.stack or "th" in self.stack:
            self.tables[self._table][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def rows(self, table: str) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self.tables[table][1:]]


def everything() -> Report:
    """A report with a row in every table, all names hostile."""
    parts = (GroupPartition(HOSTILE, 0, 5, 0, 10, 5, 90.0), GroupPartition(HOSTILE, 1, None, 0, 10, None, None))
    return report(
        topic(HOSTILE, configs={"x": HOSTILE}, cleanup_policy=HOSTILE),
        location=HOSTILE,
        groups=(GroupFacts(HOSTILE, "Stable", HOSTILE, parts), GroupFacts("none", "Empty", None, ())),
        held_back=(HeldBack(HOSTILE, 1, HOSTILE, 3, 9, 4000, 60_000), HeldBack("t", 0, "p", 3, 9, None, None)),
        doing=(Doing(HOSTILE, 0, "merge", 10, True, HOSTILE), Doing(HOSTILE, 1, "compact", 0, False, HOSTILE)),
        removals=(Removal(HOSTILE, "commit", HOSTILE, 3, 4000),),
        notes=(Note(ATTENTION, HOSTILE, HOSTILE), Note(INFORMATION, "", HOSTILE)),
    )


@pytest.mark.parametrize("kind", ["root", "kafka"])
def test_names_from_outside_are_text_and_nothing_else(kind: str) -> None:
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


def test_the_page_needs_nothing_else() -> None:
    text = as_html(everything())
    page = Page.of(text)
    assert "://" not in text
    assert not {"link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in text
    assert "url(" not in text


def test_every_link_leads_somewhere_and_ids_are_unique() -> None:
    page = Page.of(as_html(report(topic("a"), topic("b"), topic("c"), topic("d"))))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(attributes["href"] or "")[1:] for tag, attributes in page.tags if tag == "a"} <= set(ids)


def test_a_topics_row_has_its_figures() -> None:
    page = Page.of(as_html(report(topic("orders", held := (1_500_000, 500_000)))))
    [row] = page.rows("topic-table")
    assert row[:4] == ["orders", "2", "160", "2.0 MB"]
    assert row[4].endswith("1.5×")
    assert row[5:] == ["2 h ago", "5 s ago", "delete", "17", "3", "14", "20"]
    details = next(rows for name, rows in page.tables.items() if rows and rows[0][0] == "Partition" and name)
    assert [cell.strip() for cell in details[1]] == [
        "0", "10", "90", "100", "80", "1.5 MB", "", "2 h ago", "5 s ago", "12", "7",
    ]  # fmt: skip
    assert "retention.ms=86400000" in page.text
    assert sum(held) == 2_000_000


def test_groups_transactions_and_maintenance_have_their_rows() -> None:
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


def test_an_empty_root_says_so() -> None:
    page = Page.of(as_html(report()))
    for text in ("There are no topics here yet", "Nothing needs attention", "nothing holds readers back",
                 "Nothing is due", "No consumer group has committed"):  # fmt: skip
        assert text in page.text
    assert "Made by sparklog." in page.text
    assert "Consumer groups" not in Page.of(as_html(report(groups=None))).text


@pytest.mark.sweep
def test_a_thousand_topics_make_a_page_that_can_be_searched() -> None:
    topics = tuple(topic(f"topic-{number:04}", (number, 5, 5, 5)) for number in range(1000))
    text = as_html(report(*topics))
    assert len(text) < 6_000_000
    page = Page.of(text)
    assert [row[0] for row in page.rows("topic-table")] == [each.topic for each in topics]
    assert {"data-table": "topic-table"}.items() <= dict(
        next(attributes for tag, attributes in page.tags if tag == "input")
    ).items()
    assert as_html(report(*topics)) == text


def test_of_very_many_partitions_the_largest_are_shown() -> None:
    page = Page.of(as_html(report(topic("wide", tuple(range(MOST_PARTITIONS + 50))))))
    rows = next(rows for name, rows in page.tables.items() if rows[0][0] == "Partition")
    assert [int(row[0]) for row in rows[1:]] == list(range(50, MOST_PARTITIONS + 50))
    assert f"The {MOST_PARTITIONS} largest of {MOST_PARTITIONS + 50}" in page.text


def test_partitions_that_are_alike_are_one_row() -> None:
    items = [Doing("t", n, "merge", 10 + n, True, "5 slices into 1") for n in (0, 1, 2, 7)]
    items.append(Doing("t", 3, "seal", 5, True, "full"))
    items += [Doing("u", n, "merge", n, True, f"{n} slices into 1") for n in (4, 9)]
    found = [(each.topic, each.action, numbers(each.partitions), each.bytes, each.why) for each in by_topic(items)]
    assert found == [
        ("t", "merge", "0-2, 7", 50, "5 slices into 1"),
        ("t", "seal", "3", 5, "full"),
        ("u", "merge", "4, 9", 13, "partition 9: 9 slices into 1"),
    ]


def test_units_are_those_a_person_reads() -> None:
    assert [size(number) for number in (0, 999, 1500, 2_500_000, 7.2e9, 3e12, None)] == [
        "0 B", "999 B", "1.5 kB", "2.5 MB", "7.2 GB", "3.0 TB", "–",
    ]  # fmt: skip
    assert [duration(ms) for ms in (0, 90_000, 3_000_000, 7_200_000, 5 * 86_400_000, 9e10, None)] == [
        "0 s", "90 s", "50 min", "2 h", "5 days", "3 years", "–",
    ]  # fmt: skip
    assert ago(NOW_MS - 7_200_000, NOW_MS) == "2 h ago"
    assert ago(NOW_MS + 7_200_000, NOW_MS) == "in 2 h"
    assert time(NOW_MS) == "2023-11-14 22:13:20"
    assert time(2**62) == f"{2**62:,} ms"
    assert time(None) == "–"


def texts(found: Report) -> list[tuple[str, str, str]]:
    return [(note.level, note.topic, note.text) for note in health(found).notes]


def test_a_healthy_root_has_no_notes() -> None:
    assert not texts(report(topic()))


def test_each_rule_notes_what_it_is_for() -> None:
    base = topic()
    part = base.partitions[0]
    many = replace(base, partitions=(replace(part, unsealed=MANY_UNSEALED + 1),))
    assert "run `sparklog compact`" in texts(report(many))[0][2]
    behind = replace(base, activity=Activity(9000, NOW_MS, 0, 0, MANY_COMMITS + 1))
    assert "since the last checkpoint" in texts(report(behind))[0][2]
    never = replace(base, activity=Activity(MANY_COMMITS, NOW_MS, 0, 0, None))
    assert "no checkpoint" in texts(report(never))[0][2]
    young = replace(base, activity=Activity(MANY_COMMITS - 1, NOW_MS, 0, 0, None))
    assert not texts(report(young))
    ahead = replace(base, partitions=(replace(part, newest_ms=NOW_MS + 86_400_000),))
    assert "stamped in the future" in texts(report(ahead))[0][2]
    uneven = topic("uneven", (10**9, 10**8, 10**8, 10**8))
    assert texts(report(uneven))[0][0] == INFORMATION
    assert not texts(report(topic("small", (10**6, 10, 10, 10))))
    held = HeldBack("orders", 0, "job #1", 0, 5, 61_000, 60_000)
    assert "job #1" in texts(report(base, held_back=(held,)))[0][2]
    assert not texts(report(base, held_back=(replace(held, age_ms=59_000),)))
    waste = Removal("gone", "append", "unnamed", 9, 10**9)
    assert "run `sparklog retain`" in texts(report(base, removals=(waste,)))[0][2]


def test_records_that_expired_before_a_group_read_them_are_noted() -> None:
    part = GroupPartition("orders", 3, 100, 150, 200, 100, 5.0)
    group = GroupFacts("readers", "Empty", None, (part, replace(part, partition=4, offset=150)))
    [(level, name, text)] = texts(report(topic(), groups=(group,)))
    assert (level, name) == (ATTENTION, "orders")
    assert "before group readers had read them, in 1 partition (partition 3: 50 offsets)" in text


def test_attention_comes_first() -> None:
    uneven = topic("a", (10**9, 10**8, 10**8, 10**8))
    part = replace(uneven.partitions[0], unsealed=MANY_UNSEALED + 1)
    found = texts(report(uneven, replace(topic("b"), partitions=(part,))))
    assert [(level, name) for level, name, _ in found] == [(ATTENTION, "b"), (INFORMATION, "a")]
