"""Environments for other trainers: Gymnasium, OpenEnv, verifiers (docs/interfaces.md); no jax."""
