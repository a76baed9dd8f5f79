"""Passes that prepare a graph for training, or for what follows it."""
