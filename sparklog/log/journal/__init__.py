"""The journal: a durable numbered log of JSON objects, each created once. It knows nothing of topics."""
