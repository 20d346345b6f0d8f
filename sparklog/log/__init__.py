"""The topic: commit log, state, append, scan plan, lookup by offset and time."""
