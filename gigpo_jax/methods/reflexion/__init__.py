"""Reflexion (arXiv 2303.11366): a reflection after a failed trial, which later trials see."""
