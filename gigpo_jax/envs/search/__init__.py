"""Search-augmented question answering; `env` is the environment, `server` the retriever (docs/search.md)."""
