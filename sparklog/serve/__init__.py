"""A server that speaks Kafka's protocol over a root, a Kafka directory or a partition's folder."""
