"""The environments for other trainers: Gymnasium, OpenEnv and verifiers (docs/interfaces.md). Never jax."""
