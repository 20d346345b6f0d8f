"""Clusters whose processes share only a bucket: writes are exactly once if processes die, and jobs run on executors."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.storage.locations import join
from tests.datasource import spark_session
from tests.datasource.cluster import LOCAL_CLUSTER, Cluster, driver, image
from tests.datasource.cluster_driver import BATCH_RECORDS, MANY, MARKS, RECORDS
from tests.datasource.streams import feed, values

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600)]

ALL = list(range(RECORDS))
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()


@pytest.fixture
def root(bucket: str) -> str:
    return join(bucket, "log")


def check_calls(result: dict[str, object], root: str) -> None:
    assert result == {"read": [RECORDS, sum(ALL)], "executors": 2, "codes": [0, 0, 0]}
    for topic in ("in", "out", "a", "b"):
        assert values(root, topic) == ALL
    assert sparklog.verify(root).sound
    assert not (spark_session.REPOSITORY / "log").exists()
    lease = [info.key for info in sparklog.open(root).store.list("_maintenance/")]
    assert {key.split("/")[1] for key in lease} == {"compact", "retain"}


def test_calls_and_jobs_on_two_executors(spark_folder: Path, root: str) -> None:
    with driver(spark_folder, LOCAL_CLUSTER, root, "calls") as running:
        check_calls(running.result(), root)


def test_calls_and_jobs_on_a_master_and_two_workers(cluster: Cluster, spark_folder: Path, root: str) -> None:
    with driver(spark_folder, cluster.master, root, "calls") as running:
        check_calls(running.result(), root)


def test_spark_submit_says_where_a_job_runs(cluster: Cluster, root: str, tmp_path: Path) -> None:
    import pyspark

    feed(root, "in", range(RECORDS))
    before = cluster.applications(0) + cluster.applications(1)
    submit = [f"{Path(pyspark.__file__).parent}/bin/spark-submit", "--master", cluster.master]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        submit += ["--conf", f"spark.executorEnv.{name}={os.environ[name]}"]
    submit += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    job = (spark_session.REPOSITORY / "conf" / "spark_job.py").read_text()
    (tmp_path / "spark_job.py").write_text(job)
    command = [*submit, str(tmp_path / "spark_job.py"), "compact", "--root", root, "--roll", "--json"]
    (tmp_path / "sparklog.properties").write_text("spark.min.bytes=0")
    command += ["--properties", str(tmp_path / "sparklog.properties")]
    environment = {**os.environ, **spark_session.environment()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (topic,) = json.loads(done.stdout.splitlines()[-1])["topics"]
    assert [partition["actions"] for partition in topic["partitions"]] == [{"seal": 1}, {"seal": 1}]
    assert cluster.applications(0) + cluster.applications(1) > before
    assert values(root, "in") == ALL


def test_a_worker_killed_during_a_task(cluster: Cluster, spark_folder: Path, root: str) -> None:
    feed(root, "in", range(RECORDS))
    with driver(spark_folder, cluster.master, root, "copying", **SPECULATION) as running:
        lines = running.lines()
        while next(lines) != "batch 3":
            pass
        cluster.kill_worker(1)
        try:
            assert running.result()["batches"] >= RECORDS // BATCH_RECORDS
        finally:
            cluster.start_worker(1)
            cluster.wait_for_workers(2)
    assert values(root, "out") == ALL
    assert sparklog.verify(root).sound


def test_speculative_tasks_do_not_duplicate_records(
    cluster: Cluster, spark_folder: Path, root: str, tmp_path: Path
) -> None:
    settings = {**SPECULATION, MARKS: str(tmp_path / "marks")}
    with driver(spark_folder, cluster.master, root, "speculative", **settings) as running:
        attempts = [mark.split("-")[1:3] for mark in running.result()]
    assert ["3", "1"] in attempts, "the copy ran"
    assert values(root, "speculative") == ALL


def test_a_repeated_stage_does_not_duplicate_records(
    cluster: Cluster, spark_folder: Path, root: str, tmp_path: Path
) -> None:
    with driver(spark_folder, cluster.master, root, "retried_stage", **{MARKS: str(tmp_path / "marks")}) as running:
        marks = [mark for mark in running.result() if mark != "died"]
    first = Counter(tuple(mark.split("-")[1:3]) for mark in marks)
    assert first["0", "0"] + first["1", "0"] + first["2", "0"] + first["3", "0"] > 4, "the first stage ran again"
    assert values(root, "retried") == ALL


def test_executors_that_never_saw_a_kernel_compiled(spark_folder: Path, root: str, tmp_path: Path) -> None:
    code = image(tmp_path / "image")
    running = Cluster(tmp_path / "cluster", code)
    try:
        with driver(spark_folder, running.master, root, "many", code=code) as application:
            assert application.result() == [MANY, sum(range(MANY))]
    finally:
        running.stop()
    assert list((tmp_path / "cluster").glob("worker-*/tmp/sparklog-kernels-*/*")), "kept where it can be written to"
    assert (code / "sparklog" / "format" / "kernels" / "__pycache__").is_file()
