"""Clocks, ids and names."""

from __future__ import annotations

import pickle
import random

import pytest

from sparklog import errors
from sparklog.errors import BadRequest
from sparklog.log.journal import names
from sparklog.log.journal.clocks import SYSTEM, ClockReading, Env


def test_ids_have_22_characters_and_begin_with_a_letter() -> None:
    env = Env(lambda: 0, lambda: 0, lambda seconds: None, random.Random(1))
    ids = [env.new_id() for _ in range(300)]
    assert len(set(ids)) == 300
    assert all(len(text) == 22 and text[0].isalpha() for text in ids)


def test_ids_follow_the_seed() -> None:
    def first(seed: int) -> str:
        return Env(lambda: 0, lambda: 0, lambda seconds: None, random.Random(seed)).new_id()

    assert first(5) == first(5) != first(6)


def test_elapsed_time_is_the_larger_difference_of_both_clocks() -> None:
    assert ClockReading(50, 900).elapsed_ms(ClockReading(100, 100)) == 800
    assert ClockReading(9000, 100).elapsed_ms(ClockReading(100, 100)) == 8900


def test_the_system_environment_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(SYSTEM)) is SYSTEM
    before = SYSTEM.now()
    assert SYSTEM.now().elapsed_ms(before) >= 0
    assert abs(SYSTEM.wall_ms() - before.wall_ms) < 60_000


@pytest.mark.parametrize(
    "name", ["orders", "a", "A.b-c_9", "x" * 249, "__consumer_offsets", "1", "_groups", "_root", "_x", "_"]
)
def test_valid_topic_names(name: str) -> None:
    assert names.check_topic_name(name) == name
    assert names.is_topic_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\n", "a\x00", "../x"],
)
def test_invalid_topic_names(name: str) -> None:
    with pytest.raises(BadRequest):
        names.check_topic_name(name)
    assert not name or not names.is_topic_name(name)


def test_keys_of_commits_checkpoints_and_files() -> None:
    assert names.commit_key("t", 42) == "t/_log/00000000000000000042.json"
    assert names.checkpoint_key("t", 128) == "t/_log/checkpoints/00000000000000000128.json"
    assert names.entry_number(names.checkpoint_key("t", 128)) == 128
    assert names.entry_number(f"t/_log/checkpoints/{names.checkpoint_table_name(128, 'Aa')}") is None
    assert names.entry_number("t/_log/checkpoints/12.json") is None
    assert names.file_key("t", names.append_path(7, "Ab")) == "t/append/00000000000000000007-Ab.slices"
    assert names.file_key("t", "/other/append/x.slices") == "other/append/x.slices"


def test_read_versions_in_paths() -> None:
    assert names.path_read_version(names.append_path(7, "Ab-_9")) == 7
    assert names.path_read_version(names.sealed_path(3, 9, "Ab", 1234)) == 9
    assert names.path_read_version("/other/" + names.append_path(5, "Ab")) == 5
    assert names.is_sealed(names.sealed_path(3, 9, "Ab", 1234))
    assert names.is_sealed("/other/" + names.sealed_path(3, 9, "Ab", 1234))
    assert not names.is_sealed(names.append_path(7, "Ab"))


@pytest.mark.parametrize(
    "path",
    [
        "../append/00000000000000000007-a.slices",
        "append/7-a.slices",
        "append/00000000000000000007-.slices",
        "append/00000000000000000007-a/b.slices",
        "append/00000000000000000007-a.slices\n",
        "/../append/00000000000000000007-a.slices",
        "/_log/append/00000000000000000007-a.slices",
        "sealed/x/00000000000000000007-a/00000000000000000000.log",
        "_log/00000000000000000000.json",
        "/",
        "",
    ],
)
def test_paths_that_commits_must_not_reference(path: str) -> None:
    assert names.path_read_version(path) is None


def test_did_you_mean_suggests_similar_names() -> None:
    assert errors.did_you_mean("retention.mss", ["retention.ms", "x"]) == "; did you mean 'retention.ms'?"
    assert errors.did_you_mean("zzz", ["retention.ms"]) == ""
