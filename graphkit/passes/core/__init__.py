"""What passes are written with: sweeps over a graph, patterns, captures, and binding of dimensions."""
