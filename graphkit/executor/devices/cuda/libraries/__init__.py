"""NVIDIA's libraries: prepare the operations that `launches` describes for a GPU, and call the libraries."""
