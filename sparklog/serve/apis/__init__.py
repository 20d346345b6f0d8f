"""The requests that are served, a module for each family of them."""
