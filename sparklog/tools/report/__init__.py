"""The report of a root or a Kafka log directory, as a web page, as JSON and as Prometheus metrics."""
