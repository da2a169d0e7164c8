"""Engines that turn prompts into tokens and behaviour log-probabilities."""
