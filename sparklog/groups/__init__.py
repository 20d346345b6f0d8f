"""Consumer groups in the root: journal, state, members, assignors, lag and reset of offsets."""
