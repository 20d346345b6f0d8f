"""The state of a topic at a version: commits, what they add up to, and the rules for the next one."""
