"""Retention: expire old or excess segments, and delete unreferenced files."""
