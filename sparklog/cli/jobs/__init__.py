"""Jobs: programs that spark-submit, cron and the command line start. Arguments in, calls out, nothing else."""
