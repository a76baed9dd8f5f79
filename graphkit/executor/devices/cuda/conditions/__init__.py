"""Conditional nodes of CUDA graphs: branches and loops inside recordings."""
