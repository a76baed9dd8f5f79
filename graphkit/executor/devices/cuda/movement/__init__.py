"""Data movement: strided copies, gathers and scatters."""
