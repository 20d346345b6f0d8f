"""Backups: copies of a root that can be restored as of each backup, or as of earlier versions and times."""
