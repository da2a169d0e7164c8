"""Runs one command on a folder, isolated by namespaces of Linux (docs/shell.md)."""
