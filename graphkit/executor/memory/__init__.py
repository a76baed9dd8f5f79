"""Memory planning: the storage of each value, the order of steps, offsets in the arena, and pools of memory."""
