"""What the agent knows of each framework."""
