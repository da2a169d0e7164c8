"""Environments of Gymnasium as ours, and our worlds as environments of Gymnasium."""
