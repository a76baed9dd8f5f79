"""The graph core: dimensions, types, nodes, graphs, text. It knows no operator."""
