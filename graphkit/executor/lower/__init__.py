"""Lower a graph, for given input shapes, to the steps of a program."""
