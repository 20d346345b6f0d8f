"""Airflow DAG for the maintenance of one root. Put this file into `dags/`.

It requires Airflow 3, or 2.10 or newer with the standard provider.

If another run is working on a topic, this run skips that topic and still succeeds. After a crash, a topic may stay
leased for up to five minutes, so retries wait longer than that.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator

ROOT = "s3://BUCKET/log"
SPARK = "spark-submit --master spark://MASTER:7077"
"""Or `--master yarn`, or `--master k8s://...`. Add `--archives` if sparklog is not installed on the executors."""
JOB = "/opt/sparklog/spark_job.py"
"""Create this file with `sparklog conf spark_job.py`."""

with DAG(
    "sparklog_maintenance",
    schedule="7 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=6)},
) as dag:
    compact = BashOperator(task_id="compact", bash_command=f"{SPARK} {JOB} compact --root {ROOT}")
    # retain does not need Spark: it only reads logs and deletes files.
    retain = BashOperator(task_id="retain", bash_command=f"python3 {JOB} retain --root {ROOT}")
    # Records expire even if compaction failed.
    retain.trigger_rule = "all_done"
    compact >> retain
