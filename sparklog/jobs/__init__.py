"""Jobs that spark-submit, cron or the command line start: maintenance, verification, streams, Kafka and Delta."""
