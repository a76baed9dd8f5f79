"""Parameter servers: ranks that store values, and the workers' side of them (Li et al., OSDI 2014)."""
