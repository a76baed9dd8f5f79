"""What is summed over processes, and how it travels: in buckets, slices, rows, and in fewer bytes."""
