"""The report of a root or a Kafka log directory as a web page, JSON or Prometheus metrics."""
