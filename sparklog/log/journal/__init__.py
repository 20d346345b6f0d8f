"""The journal: a durable log of numbered JSON objects, each of which is created once. It is independent of topics."""
