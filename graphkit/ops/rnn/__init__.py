"""Recurrent layers: their cells, their walk over time, and their gradients."""
