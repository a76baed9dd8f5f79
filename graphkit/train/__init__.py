"""Training: losses, optimizers, schedules, metrics, checkpoints, the Trainer."""
