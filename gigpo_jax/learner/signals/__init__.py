"""Signals of several algorithms; the signals of one method are in its folder.

A run computes the signals that its algorithm names, and imports no other.
"""
