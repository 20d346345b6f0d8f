"""The state of a topic at a version: commits, the state after them, and the rules for the next commit."""
