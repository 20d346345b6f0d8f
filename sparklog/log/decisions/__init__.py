"""Transaction decisions: one journal per transactional id, and the bounds that readers draw from them."""
