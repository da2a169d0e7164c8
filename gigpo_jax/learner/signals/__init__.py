"""Signals of several algorithms; those of one method are in its folder.

A run computes the signals that its algorithm names, and imports no other.
"""
