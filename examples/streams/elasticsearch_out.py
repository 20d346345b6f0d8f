"""Elasticsearch out: records become documents by the bulk API, each once, because its place in the log is its id."""

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
            with urlopen(request, timeout=60) as answer:
                items = [item["index"] for item in json.load(answer)["items"]]
            refused = [item for item in items if item["status"] >= 300]
            if refused:  # the task fails; when Spark repeats it, documents that are there get the same contents again
                raise RuntimeError(f"{len(refused)} of {len(page)} documents were refused: {refused[0]}")

    writer = documents.writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(send))
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/payments"))


class FakeElasticsearch(ThreadingHTTPServer):
    """As much of a server as the program needs: it keeps documents, and is busy once, in the middle of a request."""

    def __init__(self, takes: int) -> None:
        super().__init__(("127.0.0.1", 0), BulkRequest)
        self.documents: dict[str, tuple[int, str]] = {}
        self.takes: float = takes

    def put(self, name: str, document: str) -> dict[str, object]:
        if self.takes == 0:
            return {"_id": name, "status": 429, "error": {"type": "es_rejected_execution_exception"}}
        self.takes -= 1
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
        """Print nothing."""


def main(spark: SparkSession, folder: str) -> str:
    append(f"{folder}/log", "payments", [("anna", "20", "10:00"), ("ben", "300", "10:01"), ("carl", "7", "10:02")])
    with FakeElasticsearch(takes=2) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            copy(spark, folder, url)
        except Exception as error:  # noqa: BLE001  (Spark wraps what a task raises)
            refused = "1 of 3 documents were refused"
            busy = [f"busy: {refused}" if refused in str(error) else repr(error), *server.lines()]
        server.takes = float("inf")
        copy(spark, folder, url)
        server.shutdown()
    return "\n".join([*busy, "started again:", *server.lines()])


if __name__ == "__main__":
    start(main)
