"""Passes that fuse several operators into one, which one kernel runs."""
