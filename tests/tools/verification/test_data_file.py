"""Checks of one file: slices that only its footer contains, wrong footers, and long slices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.log.topic.inventory import ReferencedFile
from sparklog.maintenance.work_items import silent
from sparklog.tools.verification.data_file import check_file
from sparklog.tools.verification.findings import CHECKSUM, CONTENT, FOOTER, SIZE
from sparklog.tools.verification.topic_log import read_topic
from tests.support.small_limits import small_limits
from tests.tools.verification.damage import flip, replaced
from tests.tools.verification.whole_root import WholeRoot


@pytest.fixture(scope="module")
def whole(fixtures: Path) -> WholeRoot:
    return WholeRoot(fixtures)


def files(whole: WholeRoot, topic: str, *, sealed: bool = False) -> list[ReferencedFile]:
    found = read_topic(whole.store, topic, whole.now_ms).files
    return [file for file in found if file.sealed == sealed]


def test_slice_that_only_the_footer_contains_is_checked(whole: WholeRoot) -> None:
    file = files(whole, "plain")[0]
    first, *others = sorted(file.claims, key=lambda claim: claim.position)
    kept = replace(file, claims=tuple(others))
    assert check_file(whole.store, kept, silent).findings == []
    data = whole.store.get(file.key)
    with replaced(whole, file.key, flip(data, first.position + 40, 3)):
        (found,) = check_file(whole.store, kept, silent).findings
    assert (found.kind, found.position, found.bit) == (CHECKSUM, first.position + 40, 3)


def test_file_must_match_its_commit(whole: WholeRoot) -> None:
    file = files(whole, "plain")[0]
    claim = file.claims[0]
    for wrong, kinds in (
        ({"records": claim.records + 1}, {FOOTER, CONTENT}),
        ({"end": claim.end + 1}, {FOOTER, CONTENT}),
        ({"max_ts": claim.max_ts + 1}, {FOOTER, CONTENT}),
        ({"min_ts": claim.min_ts + 1}, {FOOTER, CONTENT}),
        ({"partition": claim.partition + 1}, {FOOTER}),
        ({"flags": claim.flags | 8}, {FOOTER}),
        ({"crc": claim.crc ^ 1}, {FOOTER, CHECKSUM}),
    ):
        lying = replace(file, claims=(replace(claim, **wrong), *file.claims[1:]))  # type: ignore[arg-type]
        found = check_file(whole.store, lying, silent).findings
        assert {each.kind for each in found} == kinds, wrong
        assert {each.file for each in found} == {file.key}


def test_file_with_extra_or_missing_bytes(whole: WholeRoot) -> None:
    for file in (files(whole, "plain")[0], files(whole, "latest", sealed=True)[0]):
        data = whole.store.get(file.key)
        for wrong in (data + b"x", data[:-3], data[:10], b""):
            with replaced(whole, file.key, wrong):
                found = check_file(whole.store, file, silent).findings
            assert SIZE in {each.kind for each in found}, (file.key, len(wrong))


@pytest.mark.parametrize("topic", ["plain", "latest", "merged", "txn-a", "stamped"])
def test_slices_longer_than_a_window_have_the_same_findings(whole: WholeRoot, topic: str) -> None:
    """A window of 300 bytes contains a few batches, or a part of one."""
    for file in [*files(whole, topic), *files(whole, topic, sealed=True)]:
        usual = check_file(whole.store, file, silent)
        with small_limits(span_bytes=300):
            assert check_file(whole.store, file, silent) == usual
            assert usual.findings == []
            data = whole.store.get(file.key)
            first = min(claim.position for claim in file.claims)
            for at in range(first + 7, len(data) - file.footer_length, max(len(data) // 12, 1)):
                with replaced(whole, file.key, flip(data, at, at % 8)):
                    found = check_file(whole.store, file, silent).findings
                assert [(each.kind, each.position, each.bit) for each in found] == [(CHECKSUM, at, at % 8)]
