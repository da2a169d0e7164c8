"""The command gigpo import: a GGUF file as a Hugging Face folder."""
