"""Transactions over several topics: the rows of a transaction are visible in all its topics, or in none."""
