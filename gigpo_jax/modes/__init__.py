"""The modes of a run: train, evaluate, sft, serve, export."""
