"""Config keys: their meaning, and those that overrides of verl-agent stand for."""
