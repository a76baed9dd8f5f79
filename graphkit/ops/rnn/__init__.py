"""Recurrent layers: their cells, their recurrence over time, and their gradients."""
