"""Matrices: products, factorisations, inverses, systems of equations."""
