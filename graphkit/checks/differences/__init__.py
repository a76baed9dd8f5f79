"""How two models differ: matching of nodes, inputs, outputs and weights; the result of a comparison."""
