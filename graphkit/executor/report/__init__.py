"""What a program does and costs, for people."""
