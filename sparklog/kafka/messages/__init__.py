"""Messages of Kafka's protocol and of its coordinators, encoded and decoded by Kafka's own schemas."""
