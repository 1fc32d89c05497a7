"""Families of frozen transformers."""
