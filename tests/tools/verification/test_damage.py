"""Verify finds any damage of a referenced file, and reports the file and the position."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from sparklog.errors import SparklogError
from sparklog.format.checksums import SUFFIXES
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.maintenance.leases import job_lease
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.findings import CHAIN, MISSING, SIZE
from sparklog.tools.verification.run import verify_root
from tests.tools.verification.damage import by_kind, flip, named, replaced, sampled, undone, verified
from tests.tools.verification.whole_root import WholeRoot

KINDS = (
    *("_groups", "_groups checkpoint", "_transactions", "_transactions checkpoint", "arrow checkpoint"),
    *("index", "json", "json checkpoint", "log"),
    *("root", "slices", "timeindex", "txnindex"),
)


TOPICS_READ = ("plain", "latest", "left", "right", "old")
"""No files of `_transactions` are damaged, because transactions with unreadable decisions count as open."""


@pytest.fixture(scope="module")
def whole(fixtures: Path) -> WholeRoot:
    return WholeRoot(fixtures)


def test_valid_root_is_sound_and_all_bytes_are_counted(whole: WholeRoot) -> None:
    report = verified(whole)
    assert report.findings == ()
    assert report.unreferenced == () == report.foreign
    assert report.counts.nbytes == sum(info.size for info in whole.store.list(""))
    counts = report.counts
    assert min(counts.topics, counts.commits, counts.checkpoints, counts.entries, counts.slices, counts.records) > 0
    assert tuple(by_kind(whole)) == tuple(sorted(KINDS))


def sweep(whole: WholeRoot, seed: int, many: int) -> Counter[str]:
    """Flip `many` bits, one after the other; return how many findings had the exact byte by file type."""
    rng = random.Random(seed)
    exact: Counter[str] = Counter()
    kinds = by_kind(whole)
    for number in range(many):
        kind = KINDS[number % len(KINDS)]
        key = rng.choice(kinds[kind])
        data = whole.store.get(key)
        at, bit = sampled(data, rng), rng.randrange(8)
        with replaced(whole, key, flip(data, at, bit)):
            found = named(verified(whole, key), key)
        assert found, f"bit {bit} of byte {at} of {key} was not found (seed {seed})"
        exact[kind] += any(finding.position == at for finding in found)
    return exact


@pytest.mark.sweep
@pytest.mark.parametrize("many", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_flipped_bit_is_reported_with_its_file(whole: WholeRoot, many: int) -> None:
    exact = sweep(whole, 1, many * len(KINDS))
    assert exact["slices"] == exact["log"] == exact["index"] == exact["timeindex"] == exact["txnindex"] == many
    assert exact["arrow checkpoint"] == many
    assert sum(exact.values()) >= (many - 1) * len(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_thousands_of_flipped_bits_are_reported(whole: WholeRoot, seed: int) -> None:
    exact = sweep(whole, seed, 1100)
    assert sum(exact.values()) >= 1050


def test_all_indexes_are_reported_if_only_their_checksum_is_wrong(whole: WholeRoot) -> None:
    key = min(by_kind(whole)["txnindex"])
    data = whole.store.get(key)
    # The last stable offset of a transaction is only known from other segments.
    with replaced(whole, key, data[:-8] + bytes(8)):
        findings = verified(whole, key).findings
    assert data[-8:] != bytes(8)
    assert {finding.file for finding in findings} == {key.replace("txnindex", each) for each in SUFFIXES}
    assert all(
        "entries are missing or wrong in one of .index, .timeindex, .txnindex" in finding.message
        for finding in findings
    )


@pytest.mark.slow
def test_flipped_bits_at_all_positions_of_the_smallest_objects(whole: WholeRoot) -> None:
    kinds = by_kind(whole)
    for kind in ("root", "_transactions", "timeindex", "txnindex"):
        key = min(kinds[kind], key=lambda name: len(whole.store.get(name)))
        data = whole.store.get(key)
        for at in range(len(data)):
            for bit in (0, 3, 7):
                with replaced(whole, key, flip(data, at, bit)):
                    assert named(verified(whole, key), key), (key, at, bit)


@pytest.mark.sweep
@pytest.mark.parametrize("files", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "root"])
def test_truncated_swapped_and_zeroed_files_are_reported(whole: WholeRoot, kind: str, files: int) -> None:
    rng = random.Random(kind)
    keys = by_kind(whole)[kind]
    for key in rng.sample(keys, min(files, len(keys))):
        data = whole.store.get(key)
        for short in (data[: len(data) // 2], data[:-1], b""):
            with replaced(whole, key, short):
                assert named(verified(whole, key), key), f"{key} cut off at {len(short)} was not found"
        with replaced(whole, key, data + b"\0"):
            assert named(verified(whole, key), key), f"{key} with one byte more was not found"
        start = rng.randrange(len(data))
        zeroed = data[:start] + bytes(min(64, len(data) - start)) + data[start + 64 :]
        with replaced(whole, key, zeroed):
            assert zeroed == data or named(verified(whole, key), key), f"{key} with zeros at {start} was not found"
        other = next((each for each in keys if each != key and whole.store.get(each) != data), None)
        if other is not None:
            with replaced(whole, key, whole.store.get(other)):
                assert named(verified(whole, key), key), f"{other} in the place of {key} was not found"


@pytest.mark.parametrize("kind", ["slices", "log", "index", "timeindex", "txnindex", "arrow checkpoint"])
def test_deleted_file_is_reported_as_missing(whole: WholeRoot, kind: str) -> None:
    for key in by_kind(whole)[kind][:4]:
        with undone(whole):
            whole.store.delete(key)
            assert [finding.kind for finding in named(verified(whole, key), key)] == [MISSING], key


def _contents(whole: WholeRoot) -> dict[str, object]:
    """Return the records of each topic in another process, or the error."""
    root, found = whole.root(), dict[str, object]()
    for name in TOPICS_READ:
        try:
            found[name] = root.topic(name).scan(columns=["partition", "offset", "value"]).to_table().to_pylist()
        except SparklogError as error:
            found[name] = error
    return found


def test_readers_return_all_records_or_an_error_with_the_file(whole: WholeRoot) -> None:
    rng, before, errors = random.Random(0), _contents(whole), Counter[str]()
    assert not [name for name, found in before.items() if isinstance(found, Exception)]
    for kind, keys in by_kind(whole).items():
        read = [key for key in keys if key.split("/", 1)[0] in TOPICS_READ]
        for key in rng.sample(read, min(2, len(read))):
            data = whole.store.get(key)
            for wrong in (flip(data, sampled(data, rng), rng.randrange(8)), data[: len(data) // 2], b""):
                with replaced(whole, key, wrong):
                    after = _contents(whole)
                for name, found in after.items():
                    if isinstance(found, SparklogError):
                        errors[kind] += 1
                        assert key in f"{found} {getattr(found, 'file', '')}", (name, key, found)
                    else:
                        assert found == before[name], (name, key)
    assert errors.keys() >= {"json", "log", "slices"}, errors


def test_missing_commits_and_entries_are_reported(whole: WholeRoot) -> None:
    for key in (commit_key("plain", 3), commit_key("old", 16), commit_key("_transactions/job", 3)):
        with undone(whole):
            whole.store.delete(key)
            assert MISSING in [finding.kind for finding in named(verified(whole, key), key)], key


def test_missing_log_of_a_topic_with_data_files_is_reported(whole: WholeRoot) -> None:
    with undone(whole):
        for info in whole.store.list("old/_log/"):
            whole.store.delete(info.key)
        report = verified(whole)
        assert not repair_root(whole.store, env=whole.env()).sound
    (finding,) = named(report, commit_key("old", 0))
    assert (finding.kind, finding.message) == (MISSING, "the topic has data files, but no log")


def test_topic_that_is_created_before_files_are_listed_is_not_reported(whole: WholeRoot) -> None:
    created: list[str] = []

    def create(verb: str, key: str) -> None:
        if (verb, key) == ("list", "") and not created:
            topic = whole.root().create_topic("new", configs={"inline.records.bytes": 0})
            topic.append({"value": ["1"]})
            created.extend(info.key for info in whole.store.list("new/append/"))

    with undone(whole):
        report = verify_root(HookedStore(whole.store, create), env=whole.env())
    assert report.sound
    assert created == [each.file for each in report.unreferenced if each.file in created]


@pytest.mark.parametrize("prefix", ["_maintenance/compact", "_groups/billing", "_transactions/job", "plain", "old"])
@pytest.mark.parametrize("copied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_object_with_a_large_number_is_reported_in_constant_memory(whole: WholeRoot, prefix: str, copied: bool) -> None:
    """No loop runs over the numbers between two names, which have up to 20 digits."""
    far = 3_000_000
    with undone(whole):
        with job_lease(whole.root(), "compact", (), enabled=True):
            pass
        newest = max(info.key for info in whole.store.list(f"{prefix}/_log/0"))
        keys = [commit_key(prefix, far)] + [checkpoint_key(prefix, far)] * copied
        for key in keys:
            whole.store.create(key, whole.store.get(newest))
        tracemalloc.start()
        try:
            report = verified(whole, quick=True)
            used = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    for key in keys:
        assert named(report, key), key
    assert used < 40 << 20, "a set of the numbers between takes some 200 MiB"


def test_unneeded_commits_are_unreferenced(whole: WholeRoot) -> None:
    """The vacuum may delete commits below the second latest checkpoint, so remaining ones are not damage."""
    with undone(whole):
        whole.store.delete(commit_key("old", 13))
        report = verified(whole, "old")
    assert report.sound
    assert [each.file for each in report.unreferenced] == [commit_key("old", 11), commit_key("old", 12)]


def test_replaced_commit_breaks_the_chain_of_checksums(whole: WholeRoot) -> None:
    """The commit is valid, but replaces the original one."""
    from dataclasses import replace

    from sparklog.log.state.commit_object import decode_commit, encode_commit

    key = commit_key("plain", 5)
    commit = decode_commit(whole.store.get(key), key, 5)
    with replaced(whole, key, encode_commit(replace(commit, time_ms=commit.time_ms + 1, embedded=None))):
        assert CHAIN in [finding.kind for finding in named(verified(whole, key), key)]


def test_quick_verification_checks_logs_and_sizes(whole: WholeRoot) -> None:
    assert verified(whole, quick=True).sound
    key = by_kind(whole)["slices"][0]
    data = whole.store.get(key)
    with replaced(whole, key, flip(data, 50, 1)):
        assert verified(whole, key, quick=True).sound
    with replaced(whole, key, data[:-1]):
        assert [finding.kind for finding in verified(whole, key, quick=True).findings] == [SIZE]
    for kind in ("slices", "log", "index", "timeindex", "txnindex"):
        with undone(whole):
            gone = by_kind(whole)[kind][0]
            whole.store.delete(gone)
            assert [finding.kind for finding in named(verified(whole, gone, quick=True), gone)] == [MISSING], gone
    commit = commit_key("plain", 2)
    with replaced(whole, commit, flip(whole.store.get(commit), 50, 1)):
        assert named(verified(whole, commit, quick=True), commit)


def test_unreferenced_and_foreign_files_are_not_damage(whole: WholeRoot) -> None:
    unreferenced = (
        "plain/append/00000000000000000003-abc.slices",
        "plain/sealed/0/00000000000000000003-abc/00000000000000000000.log",
        "plain/_log/checkpoints/00000000000000000003-abc.arrow",
        "old/append/00000000000000000001-abc.slices",
        "gone/append/00000000000000000001-abc.slices",
        "_probe/0123456789abcdef01234567/3-race",
    )
    foreign = ("plain/append/notes.txt", "readme.txt", "_other/x", "plain/_log/x.tmp")
    with undone(whole):
        for key in (*unreferenced, *foreign, "_probe/verdict-0123456789abcdef.json"):
            whole.store.create(key, b"12345")
        whole.now_ms += 5000
        report = verified(whole)
    whole.now_ms -= 5000
    assert report.sound
    assert sorted(each.file for each in report.unreferenced) == sorted(unreferenced)
    assert {(each.nbytes, each.age_ms) for each in report.unreferenced} == {(5, 5000)}
    assert sorted(each.file for each in report.foreign) == sorted(foreign)
