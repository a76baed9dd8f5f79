"""Reports on what a program does and costs."""
