"""Schemas of keys and values: a client of schema registries with Confluent's REST API, and its cache on disk."""
