"""Passes that make one operator of several, so that one kernel runs in their place."""
