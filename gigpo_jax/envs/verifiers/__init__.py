"""Environments of verifiers as ours, and our worlds as environments of verifiers."""
