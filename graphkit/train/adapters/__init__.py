"""LoRA and DoRA: low-rank adapters, trained while the weights of a model are frozen, and stored in their own files."""
