"""Compiles a config's programs for devices that need not be here, and says what they need."""
