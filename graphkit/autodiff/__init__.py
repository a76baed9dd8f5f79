"""Differentiation from graph to graph."""

from graphkit.autodiff.gradient import gradient, reached

__all__ = ["gradient", "reached"]
