"""Recurrent layers: a product and a generated kernel for each step of time."""
