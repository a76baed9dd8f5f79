"""Text generation: the roles of inputs, a kept cache, the choice of tokens, beam search."""
