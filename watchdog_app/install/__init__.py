"""Load the agent in kernels and scripts that do not name it, and undo that."""
