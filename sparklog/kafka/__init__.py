"""Read, import and export Kafka log directories, and encode the messages of the Kafka protocol."""
