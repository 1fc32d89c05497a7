"""`python -m pfedseq`, the same as `pfedseq`."""

from pfedseq.cli import main

main()
