"""TCOD (arXiv 2604.24005): episodes begin ever earlier in an expert's episode."""
