"""A topic with another number of partitions: its records by key, and where its groups go on."""
