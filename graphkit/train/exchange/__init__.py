"""How the ranks that train together share a step: all-reduce, parameter servers, elastic averaging, divided models."""
