"""Processes that make samples into memory which they share with the process that trains."""
