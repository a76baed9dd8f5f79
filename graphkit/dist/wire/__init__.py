"""Arrays and messages between processes."""
