"""Is everything still there, and is it what was written? Every byte of a root, or of a Kafka log directory, is read."""
