"""pfedseq as a Flower app; its code is in the installed package."""
