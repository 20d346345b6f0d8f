"""The consumer, which reads partitions alone or as a member of a group, and commits its positions."""
