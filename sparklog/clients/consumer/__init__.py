"""A consumer, which reads partitions with or without a consumer group, and commits its positions."""
