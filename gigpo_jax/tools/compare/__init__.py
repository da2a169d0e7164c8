"""Compares finished runs on the same panel: `gigpo compare` (docs/compare.md)."""
