"""LoRA and DoRA: adapters of low rank, trained while the weights of a model stay frozen, and stored in files alone."""
