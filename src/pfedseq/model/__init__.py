"""A frozen encoder, its adapter and head, and what a client computes with them."""
