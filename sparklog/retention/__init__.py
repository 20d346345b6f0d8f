"""Retention: expire old or excess segments, and vacuum unreferenced files."""
