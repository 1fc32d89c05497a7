"""Dialogues: prompts and answers for a causal language model."""
