"""Compiles a config's programs for devices that this machine does not have, and says what they
need.
"""
