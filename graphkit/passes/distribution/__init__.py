"""A graph divided among ranks that may need each other in any way, through branches and loops."""
