"""Maintenance of one root as a DAG of Airflow (2.10 or newer with its standard provider, or 3): put it into `dags/`.

A run that finds another one at work on the same topics leaves them to it and ends well. After a crash a topic is free
again within five minutes: a retry comes later than that.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator

ROOT = "s3://BUCKET/log"
SPARK = "spark-submit --master spark://MASTER:7077"
"""Or `--master yarn`, or `--master k8s://...`; with `--archives` where executors have no sparklog."""
JOB = "/opt/sparklog/spark_job.py"
"""`sparklog conf spark_job.py` prints it."""

with DAG(
    "sparklog_maintenance",
    schedule="7 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=6)},
) as dag:
    compact = BashOperator(task_id="compact", bash_command=f"{SPARK} {JOB} compact --root {ROOT}")
    # Needs no Spark: it looks at logs alone, and deletes.
    retain = BashOperator(task_id="retain", bash_command=f"python3 {JOB} retain --root {ROOT}")
    # What could not be compacted still expires.
    retain.trigger_rule = "all_done"
    compact >> retain
