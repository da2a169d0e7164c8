"""Environments and agent programs in worker processes."""
