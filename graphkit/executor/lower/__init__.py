"""From a graph of known sizes to steps of a native program."""
