"""Steps of devices with their own memory, besides single kernels: subgraphs, all-reduces, copies to the host."""
