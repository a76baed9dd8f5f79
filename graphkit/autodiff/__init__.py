"""Differentiation from graph to graph."""

from graphkit.autodiff.gradient import gradient

__all__ = ["gradient"]
