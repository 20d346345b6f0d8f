"""The producer: accepts single records from any number of threads, and commits once per topic and linger."""
