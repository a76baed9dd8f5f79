"""Runs of a model over whole data sets: evaluation."""
