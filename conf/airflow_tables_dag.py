"""Airflow DAG that copies topics to tables every ten minutes. Put this file into `dags/`.

It requires Airflow 3, or 2.10 or newer with the standard provider, and an environment with the extras `iceberg` and
`deltalake` of sparklog for the tasks. Neither Spark nor Java is required.

A task that is retried or cleared continues where the last run stopped, and writes each record once. There is nothing to
backfill: the first run copies all records of the topic.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator

ROOT = "s3://BUCKET/log"
SPARKLOG = "/opt/sparklog/.venv/bin/sparklog"

with DAG(
    "sparklog_tables",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
) as dag:
    BashOperator(
        task_id="orders",
        bash_command=f"{SPARKLOG} to-iceberg --root {ROOT} --topic orders --table shop.orders --catalog prod",
    )
    BashOperator(
        task_id="customers",
        bash_command=f"{SPARKLOG} to-delta --root {ROOT} --topic customers --table s3://BUCKET/tables/customers"
        " --mode upsert",
    )
