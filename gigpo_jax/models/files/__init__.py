"""Model folders: reading and writing the files of Hugging Face models."""
