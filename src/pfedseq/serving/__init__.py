"""Uses of a run's models: prediction, evaluation, export, and an HTTP service."""
