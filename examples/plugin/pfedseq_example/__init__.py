"""Plug-ins for pfedseq, each in one file: a method, a data set, a measure, an encoder family."""
