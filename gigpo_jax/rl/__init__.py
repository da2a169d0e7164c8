"""Advantages, losses and the train step: pure functions on arrays."""
