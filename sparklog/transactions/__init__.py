"""Transactions over topics: the rows of one are visible in all of its topics, or in none."""
