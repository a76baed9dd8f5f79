"""Passes that prepare a graph for training, or a trained graph for inference."""
