"""Programs of graphs whose groups of nodes run on several devices: a piece for each, which hands values on."""
