"""Arrays and messages from one process to another."""
