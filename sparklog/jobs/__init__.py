"""Jobs that are started with spark-submit, cron or the command line: maintenance, verification, streaming, and copies
from and to Kafka and Delta.
"""
