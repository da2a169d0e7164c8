"""Search-augmented question answering: environment, retrieval and server (docs/search.md)."""
