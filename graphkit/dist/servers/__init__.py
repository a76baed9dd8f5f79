"""Servers of parameters: ranks that hold values, and what workers ask of them (Li et al., OSDI 2014)."""
