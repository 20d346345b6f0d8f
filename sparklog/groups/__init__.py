"""Consumer groups: their committed offsets, kept in the root. Transactions commit offsets of groups too."""
