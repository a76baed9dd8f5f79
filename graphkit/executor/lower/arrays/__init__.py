"""Ways of nodes on devices with arrays of their own, beside single kernels: subgraphs, and sums over processes."""
