"""What a run's models are for: predictions, evaluation, export, and a service for all clients."""
