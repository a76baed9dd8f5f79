"""Programs on devices with their own memory: instances, how their steps run, and recordings of steps."""
