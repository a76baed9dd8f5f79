"""Text as data: sentences with labels, and running text, numbered by a vocabulary."""
