"""Consumer groups of a root: journal, state, members, assignors, lag, and offset resets."""
