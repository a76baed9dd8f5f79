"""The graphs of a training step: loss, gradients and updates, for one rank or for several.

In this package, a program is a graph that an Executor compiles for the shapes of each batch.
"""
