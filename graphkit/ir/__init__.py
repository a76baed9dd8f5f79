"""The graph core: dimensions, types, nodes, graphs, text. It knows no operator."""

from graphkit.ir import pickling as pickling  # every graph can be pickled
