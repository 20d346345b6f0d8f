"""How many jobs of Spark are begun at once, and the line about those that run; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.maintenance.spark_runner import CLUSTER_JOBS, NAMED, _at_once, _Batch
from sparklog.testing.world import World


@pytest.mark.parametrize(
    ("master", "slots", "jobs"),
    [
        ("local", 1, 1),
        ("local[2]", 2, 2),
        ("local[*, 4]", 8, 8),
        ("local-cluster[2,1,1024]", 2, CLUSTER_JOBS),
        ("spark://host:7077", 2, CLUSTER_JOBS),
        ("k8s://https://host", 400, 400),
        ("yarn", 0, CLUSTER_JOBS),
    ],
)
def test_a_cluster_that_is_still_starting_is_given_more_than_its_first_slots(
    master: str, slots: int, jobs: int
) -> None:
    assert _at_once(SimpleNamespace(master=master, defaultParallelism=slots)) == jobs


@pytest.mark.parametrize(("running", "more"), [(NAMED, ""), (NAMED + 5, ", 5 more")])
def test_a_line_names_a_few_of_those_that_run(running: int, more: str) -> None:
    works: Any = [SimpleNamespace(title=f"seal t-{number}") for number in range(running)]
    batch = _Batch(None, works, False, World().env())
    for _ in works:
        batch._take()
    names = ", ".join(f"seal t-{number} (0 s)" for number in range(NAMED))
    assert batch._heartbeat() == f"0 of {running} pieces finished, running: {names}{more}"
