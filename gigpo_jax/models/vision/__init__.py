"""The vision tower, its configuration and image preprocessing."""
