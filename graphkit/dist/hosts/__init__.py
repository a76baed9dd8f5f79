"""Processes that share a host: their cores, hierarchical collectives, and heartbeats."""
