"""Steps of devices with their own memory, besides single kernels: subgraphs, collectives, copies to the host.

In this package, a recording is a sequence of steps that the device replays with one launch, such as a CUDA graph. An
instance of a program owns the memory of its runs, and has one run at a time.
"""
