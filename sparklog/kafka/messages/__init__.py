"""Encode and decode Kafka protocol messages and coordinator records, using Kafka's schemas."""
