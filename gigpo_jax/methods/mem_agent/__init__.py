"""MemAgent (arXiv 2507.02259): a conversation that is full goes on from a summary of itself."""
