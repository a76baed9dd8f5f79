"""Many processes: communicators, the key-value store, launching under MPI. Knows no graph."""
