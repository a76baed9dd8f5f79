"""Transformations of models into models: gradients, loops in blocks."""
