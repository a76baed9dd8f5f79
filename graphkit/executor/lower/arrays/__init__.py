"""Steps of devices with their own memory, besides single kernels: subgraphs, collectives, copies to the host."""
