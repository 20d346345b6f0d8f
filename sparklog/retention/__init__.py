"""Expiring what is old or too much, and removing the files that nothing names any more."""
