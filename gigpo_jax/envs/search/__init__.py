"""Search-augmented question answering: an environment, retrieval and a retriever's server (docs/search.md)."""
