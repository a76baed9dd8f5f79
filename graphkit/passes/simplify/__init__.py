"""Passes that leave fewer or simpler nodes."""
