"""Graph rewrites: one pass per file, each a function from Graph to Graph."""
