"""Transaction decisions: one journal per transactional id, and the offsets up to which readers can read."""
