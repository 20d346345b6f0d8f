"""Clients of a root: the producer and the consumer."""
