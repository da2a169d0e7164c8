"""Metrics and where they are written."""
