"""Text as data: sentences with labels, and running text, encoded by a vocabulary."""
