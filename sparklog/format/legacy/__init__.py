"""Read messages of formats v0 and v1."""
