"""From a graph to results: kernels, memory plan, sessions."""
