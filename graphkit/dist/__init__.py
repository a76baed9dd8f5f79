"""Training with several processes: communicators, the key-value store, launching under MPI."""
