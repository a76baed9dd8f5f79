"""Programs on devices with arrays of their own: what an instance holds, how its steps run, and their recordings."""
