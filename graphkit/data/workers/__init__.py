"""Processes that make samples in memory that they share with the training process."""
