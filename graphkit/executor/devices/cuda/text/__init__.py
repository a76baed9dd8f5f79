"""Generation of CUDA C++: axes, indices, expressions, and the reduction of partial results over threads."""
