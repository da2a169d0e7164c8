"""Tasks in a folder, done by shell commands in a sandbox (docs/shell.md)."""
