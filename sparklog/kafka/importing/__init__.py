"""Import Kafka log directories into a root: partitions, consumer groups and open transactions."""
