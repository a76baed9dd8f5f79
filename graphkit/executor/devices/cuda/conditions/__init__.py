"""Conditional nodes of CUDA graphs: steps in recordings that values choose between, or repeat."""
