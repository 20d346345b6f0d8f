"""Kafka's log directories, read in place, imported and exported; and the messages of Kafka's protocol."""
