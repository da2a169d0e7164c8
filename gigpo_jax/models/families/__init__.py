"""One file a model family: what its layers have, and its names in Hugging Face folders."""
