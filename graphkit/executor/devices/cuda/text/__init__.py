"""What kernels are written with: axes, indices, expressions, and how threads join what they have found."""
