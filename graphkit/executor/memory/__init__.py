"""Where values lie: placement, order of steps, the plan of the arena."""
