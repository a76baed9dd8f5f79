"""Tools for writing passes: sweeps over a graph, patterns, captures, and binding of dimensions."""
