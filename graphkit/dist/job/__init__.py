"""A job of processes under MPI: how they start and end."""
