"""The lag of queries according to Spark's progress: numbers, lines and the file for Prometheus."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparklog.datasource.watch import QueryLag, QueryLags, source_lags, watch


def source(end: Any, latest: Any) -> Any:
    return SimpleNamespace(endOffset=end, latestOffset=latest)


ORDERS = source(
    {"orders": {"0": 5, "1": 7}, "audit": {"0": 9}, "$ids": {"orders": "x", "audit": "y"}},
    {"orders": {"0": 15, "1": 8, "2": 4}, "audit": {"0": 9}},
)


def progress(*sources: Any, name: str | None = "copy", run: str = "r1", batch: int = 3) -> Any:
    return SimpleNamespace(
        progress=SimpleNamespace(name=name, id="i1", runId=run, batchId=batch, sources=list(sources))
    )


@pytest.mark.parametrize("form", [dict, json.dumps])
def test_lag_is_the_difference_of_the_offsets(form: Any) -> None:
    found = source_lags("copy", "r1", 3, 0, source(form(ORDERS.endOffset), form(ORDERS.latestOffset)))
    assert found == [QueryLag("copy", "r1", 3, 0, "audit", 1, 0, 0), QueryLag("copy", "r1", 3, 0, "orders", 2, 11, 10)]


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        ('{"orders":{"0":5}}', '{"orders":{"0":9}}'),
        ("42", "43"),
        ("None", "None"),
        (None, None),
        ('{"orders":{"0":5},"$ids":{}}', "null"),
        ('{"orders":{"0":5},"$ids":{}}', '{"orders":[1]}'),
        ('{"orders":{"0":5},"$ids":{},"$new":1}', '{"orders":{"0":9}}'),
    ],
)
def test_other_sources_and_unplanned_batches_have_no_lag(end: Any, latest: Any) -> None:
    assert source_lags("copy", "r1", 3, 0, source(end, latest)) == []


def test_lines_figures_and_the_file(tmp_path: Path) -> None:
    lines: list[str] = []
    file = tmp_path / "queries.prom"
    lags = QueryLags(None, lines.append, str(file))  # type: ignore[arg-type]
    lags.onQueryProgress(progress(source("7", "8"), ORDERS))
    lags.onQueryProgress(progress(ORDERS, name=None, run="r2", batch=9))
    lags.onQueryProgress(progress(source("7", "8"), run="other"))
    assert lines == [
        "query copy, batch 3: 11 offsets behind latest (audit 0, orders 11)",
        "query i1, batch 9: 11 offsets behind latest (audit 0, orders 11)",
    ]
    assert [(item.query, item.source, item.topic, item.behind) for item in lags()] == [
        ("copy", 1, "audit", 0),
        ("copy", 1, "orders", 11),
        ("i1", 0, "audit", 0),
        ("i1", 0, "orders", 11),
    ]
    families = {family.name: family for family in text_string_to_metric_families(file.read_text())}
    assert {name: family.type for name, family in families.items()} == {
        "sparklog_query_offsets_behind_latest": "gauge",
        "sparklog_query_max_offsets_behind_latest": "gauge",
        "sparklog_query_batch_id": "gauge",
    }
    most = families["sparklog_query_max_offsets_behind_latest"].samples
    assert [(sample.labels["query"], sample.labels["topic"], sample.value) for sample in most][1] == (
        "copy",
        "orders",
        10.0,
    )
    lags.onQueryTerminated(SimpleNamespace(runId="r1"))  # type: ignore[arg-type]
    assert {item.query for item in lags()} == {"i1"}
    assert 'query="copy"' not in file.read_text()
    assert list(tmp_path.iterdir()) == [file]


def test_an_unwritable_metrics_file_does_not_stop_the_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lags = QueryLags(None, print, str(tmp_path / "no" / "queries.prom"))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        lags.onQueryProgress(progress(ORDERS))
    assert "queries.prom' cannot be written: No such file or directory; choose another metrics_file" in caplog.text
    assert len(lags()) == 2


@pytest.mark.parametrize(("module", "daemon"), [("pyspark.sql.connect.session", True), ("pyspark.sql.session", False)])
def test_threads_of_spark_connect_do_not_keep_the_process_from_ending(module: str, daemon: bool) -> None:
    """Spark Connect starts a thread that waits for events. The thread is a daemon only if the thread that adds the
    listener is a daemon.
    """
    made: list[threading.Thread] = []
    listeners: list[object] = []

    def add(listener: object) -> None:
        listeners.append(listener)
        made.append(threading.Thread())

    session = type("Session", (), {"__module__": module, "streams": SimpleNamespace(addListener=add)})
    assert [watch(session())] == listeners
    assert [thread.daemon for thread in made] == [daemon]


@pytest.mark.parametrize("module", ["pyspark.sql.connect.session", "pyspark.sql.session"])
@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, SystemExit])
def test_a_listener_that_cannot_be_added_is_an_error(module: str, kind: type[BaseException]) -> None:
    def add(listener: object) -> None:
        raise kind("struck")

    session = type("Session", (), {"__module__": module, "streams": SimpleNamespace(addListener=add)})
    with pytest.raises(kind, match="struck"):
        watch(session())
