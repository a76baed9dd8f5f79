"""Scaled dot-product attention, without its scores in memory."""
