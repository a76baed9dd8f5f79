"""Divide a graph among ranks or devices, including the subgraphs of If, Loop and Scan."""
