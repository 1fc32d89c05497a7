"""The frozen encoder, its adapter and head, and the client's loss, gradient and score."""
