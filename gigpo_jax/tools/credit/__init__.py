"""Measures the true advantage of single steps and grades the algorithms' estimates of it
(docs/credit.md).
"""
