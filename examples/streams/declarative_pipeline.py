"""Declarative pipeline: read a topic into tables and write another topic with `spark-pipelines run`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from running import append, read, require, start

require('".[spark,connect]" "pyspark[pipelines]"', "grpcio", "grpcio-status", "PyYAML")

DEFINITIONS = Path(__file__).resolve().parent / "pipelines"
LASTING_CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")


def run_pipeline(folder: str, definitions: str, settings: dict[str, str], *arguments: str) -> str:
    """Run a pipeline with one definition file, and return its output. Its tables are stored in `folder`/warehouse."""
    # the definitions must be in the directory of the spec, or in a subdirectory
    shutil.copy(DEFINITIONS / definitions, folder)
    spec = {
        "name": definitions.removesuffix(".py"),
        "storage": (Path(folder) / "storage").as_uri(),
        "libraries": [{"glob": {"include": definitions}}],
        "configuration": {"example.root": f"{folder}/log", "spark.sql.shuffle.partitions": "1", **settings},
    }
    (Path(folder) / "spark-pipeline.yml").write_text(json.dumps(spec))  # JSON is valid YAML
    program = shutil.which("spark-pipelines", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    warehouse = f"spark.sql.warehouse.dir={folder}/warehouse"
    command = [program or "spark-pipelines", "--remote", "local[2]", "--conf", warehouse, *arguments, "run"]
    # `sparklog.configure` has already set Spark's Python, unless this is a Spark Connect client.
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_REMOTE", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout + done.stderr


def tables(folder: str) -> list[str]:
    """Return the pipeline's table and topic as lines, with plain Python."""
    rows = ds.dataset(f"{folder}/warehouse/towns", format="parquet").to_table().sort_by("customer").to_pylist()
    towns = [f"{row['customer']} in {row['town']}" for row in rows]
    return [f"towns: {', '.join(towns)}", f"moves: {', '.join(read(f'{folder}/log', 'moves'))}"]


def main(spark: SparkSession, folder: str) -> str:
    Path(folder).mkdir(parents=True, exist_ok=True)
    root = f"{folder}/log"
    append(root, "customers", [("anna", "Bonn", "10:00"), ("ben", "Ulm", "10:01"), ("anna", "Kiel", "10:02")])
    run_pipeline(folder, "towns.py", {}, *LASTING_CATALOG)
    first = tables(folder)

    append(root, "customers", [("ben", None, "10:03"), ("carl", "Jena", "10:04")])
    run_pipeline(folder, "towns.py", {}, *LASTING_CATALOG)
    return "\n".join(["first run:", *first, "second run:", *tables(folder)])


if __name__ == "__main__":
    start(main)
