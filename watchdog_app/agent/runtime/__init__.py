"""What happens at a step boundary, and the line to the daemon."""
