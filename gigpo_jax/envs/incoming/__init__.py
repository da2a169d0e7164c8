"""Environments of other packages as ours, by names such as gymnasium:ID."""
