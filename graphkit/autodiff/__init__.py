"""Differentiation from graph to graph."""

from graphkit.autodiff.reverse_mode import gradient, reached

__all__ = ["gradient", "reached"]
