"""Qwen2.5 in Flax: the model, its weights, its tokenizer. Knows nothing of reinforcement learning."""
