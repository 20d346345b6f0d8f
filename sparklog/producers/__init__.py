"""The producer: records one by one from many threads, one commit per topic and linger."""
