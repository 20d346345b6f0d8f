"""Encode and decode the messages of the Kafka protocol and of its coordinators, with Kafka's own schemas."""
