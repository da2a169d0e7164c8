"""A small complete environment, explained in docs/environments.md."""
