"""Operators on matrices: products, factorisations, inverses, systems of equations."""
