"""The number of examples needed to judge a client."""

FEWEST_TO_JUDGE = 10
"""With fewer examples, one is more than ten points of accuracy: such a client is trained and shown,
but excluded from the worst client, the bottom decile and the clients worse off."""


def can_be_judged(num_examples: int) -> bool:
    """Whether a client has enough examples to be judged."""
    return num_examples >= FEWEST_TO_JUDGE
