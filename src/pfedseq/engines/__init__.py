"""Engines: how messages reach the clients, and the one round loop over them."""
