"""Llama 3 and models of its shape, such as SmolLM2: no biases, and norms of layers alone."""

from gigpo_jax.models.families.family import Family

FAMILY = Family(
    "Llama 3", "Llama", write_keys=lambda config: {"attention_bias": False, "mlp_bias": False}
)
