"""Files in: write each row of JSON and CSV files to a topic exactly once, even if the program is killed."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from running import finish, read, start

ORDER = "id STRING, item STRING, amount INT"


def copy(spark: SparkSession, folder: str, kind: str) -> None:
    """Copy the rows of all new files of a kind, `json` or `csv`, to the topic `orders`."""
    files = spark.readStream.schema(ORDER).format(kind).option("header", True)  # `header` only affects CSV
    rows = files.option("pathGlobFilter", f"*.{kind}").load(f"{folder}/in")
    records = rows.selectExpr("id AS key", "to_json(struct(item, amount, _metadata.file_name AS file)) AS value")
    sink = records.writeStream.format("sparklog").option("topic", "orders").option("path", f"{folder}/log")
    finish(sink.option("checkpointLocation", f"{folder}/checkpoints/{kind}"))


def put(folder: str, name: str, text: str) -> None:
    """Write a file to another directory and move it into the input directory, so that readers never see an incomplete
    file.
    """
    Path(folder, "in").mkdir(exist_ok=True)
    Path(folder, name).write_text(text)
    Path(folder, name).rename(Path(folder, "in", name))


def remove_last_batch_commit(folder: str, kind: str) -> None:
    """Reset the checkpoint to its state between the topic's commit and Spark's own record of the batch."""
    commits = Path(folder, "checkpoints", kind, "commits")
    last = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
    last.unlink()
    Path(commits, f".{last.name}.crc").unlink(missing_ok=True)


def main(spark: SparkSession, folder: str) -> str:
    put(folder, "monday.json", '{"id": "1", "item": "lamp", "amount": 2}\n{"id": "2", "item": "desk", "amount": 1}\n')
    put(folder, "monday.csv", "id,item,amount\n3,sofa,1\n")
    copy(spark, folder, "json")
    copy(spark, folder, "csv")
    first = read(f"{folder}/log", "orders")

    remove_last_batch_commit(folder, "json")
    put(folder, "tuesday.json", '{"id": "4", "item": "rug", "amount": 3}\n')
    copy(spark, folder, "json")
    second = read(f"{folder}/log", "orders")
    return "\n".join(["first run:", *first, "killed, a file later:", *second])


if __name__ == "__main__":
    start(main)
