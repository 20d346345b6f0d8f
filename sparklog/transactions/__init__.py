"""Transactions across several topics: the rows of a transaction become visible in all of its topics, or in none."""
