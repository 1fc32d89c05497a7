"""What pfedseq does not have: a method and a data set, each one file."""
