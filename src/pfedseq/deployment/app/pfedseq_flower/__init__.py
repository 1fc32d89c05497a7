"""pfedseq as a Flower app; all that it does is in the installed package."""
