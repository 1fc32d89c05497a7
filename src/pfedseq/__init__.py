"""pfedseq: a foundation model tuned for each of many parties, without sharing data."""

__version__ = "0.1.0"
