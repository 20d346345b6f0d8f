"""One page about a whole root: topics, consumer lag, the next maintenance run, and what needs attention."""
