"""Elasticsearch out: index records with the bulk API, each once, because a document's id is the record's offset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from threading import Thread
from urllib.request import Request, urlopen

from pyspark.sql import Row, SparkSession
from running import append, finish, start


def copy(spark: SparkSession, folder: str, url: str) -> None:
    """Copy payments into the index `payments`."""
    payments = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/payments")
    document = "struct(CAST(key AS STRING) AS customer, CAST(CAST(value AS STRING) AS INT) AS amount, timestamp)"
    documents = payments.selectExpr(
        "concat_ws('-', topic, `partition`, `offset`) AS id", f"to_json({document}) AS document"
    )

    def send(rows: Iterator[Row]) -> None:
        while page := list(islice(rows, 1000)):
            lines = "".join(f"{json.dumps({'index': {'_id': row.id}})}\n{row.document}\n" for row in page)
            request = Request(f"{url}/payments/_bulk", lines.encode(), {"Content-Type": "application/x-ndjson"})
            with urlopen(request, timeout=60) as response:
                items = [item["index"] for item in json.load(response)["items"]]
            rejected = [item for item in items if item["status"] >= 300]
            if rejected:  # fail the task; a retry overwrites indexed documents with the same content
                raise RuntimeError(f"{len(rejected)} of {len(page)} documents were rejected: {rejected[0]}")

    writer = documents.writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(send))
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/payments"))


class FakeElasticsearch(ThreadingHTTPServer):
    """A minimal server that stores documents. It accepts `capacity` documents, and then reports that it is busy."""

    def __init__(self, capacity: int) -> None:
        super().__init__(("127.0.0.1", 0), BulkRequest)
        self.documents: dict[str, tuple[int, str]] = {}
        self.capacity: float = capacity

    def put(self, name: str, document: str) -> dict[str, object]:
        if self.capacity == 0:
            return {"_id": name, "status": 429, "error": {"type": "es_rejected_execution_exception"}}
        self.capacity -= 1
        version = self.documents.get(name, (0, ""))[0] + 1
        self.documents[name] = (version, document)
        return {"_id": name, "status": 201 if version == 1 else 200, "_version": version}

    def lines(self) -> list[str]:
        return [f"{name} version {version} {text}" for name, (version, text) in sorted(self.documents.items())]


class BulkRequest(BaseHTTPRequestHandler):
    server: FakeElasticsearch

    def do_POST(self) -> None:
        lines = self.rfile.read(int(self.headers["Content-Length"])).decode().splitlines()
        names = [json.loads(action)["index"]["_id"] for action in lines[::2]]
        items = [{"index": self.server.put(*pair)} for pair in zip(names, lines[1::2], strict=True)]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"items": items}).encode())

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


def main(spark: SparkSession, folder: str) -> str:
    append(f"{folder}/log", "payments", [("anna", "20", "10:00"), ("ben", "300", "10:01"), ("carl", "7", "10:02")])
    with FakeElasticsearch(capacity=2) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            copy(spark, folder, url)
        except Exception as error:  # noqa: BLE001  (Spark wraps exceptions of tasks)
            rejected = "1 of 3 documents were rejected"
            busy = [f"busy: {rejected}" if rejected in str(error) else repr(error), *server.lines()]
        server.capacity = float("inf")
        copy(spark, folder, url)
        server.shutdown()
    return "\n".join([*busy, "started again:", *server.lines()])


if __name__ == "__main__":
    start(main)
