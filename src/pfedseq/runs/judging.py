"""How many examples it takes to judge a client."""

FEWEST_TO_JUDGE = 10
"""With fewer, one example is more than ten points of accuracy: such a client is trained and shown,
but is neither the worst client, nor in the bottom decile, nor called worse off."""


def can_be_judged(num_examples: int) -> bool:
    """Whether a score over so many examples says something about a client."""
    return num_examples >= FEWEST_TO_JUDGE
