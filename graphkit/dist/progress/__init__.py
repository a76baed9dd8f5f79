"""Progress engine: ranks agree which pending operations to run next, and run them in the same order."""
