"""Runs: from a config to a folder of results, and many of them in a sweep."""
