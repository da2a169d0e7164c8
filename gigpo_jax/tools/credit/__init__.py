"""Measures true advantages of steps and grades the algorithms' estimates (docs/credit.md)."""
