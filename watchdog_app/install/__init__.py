"""Putting the agent into kernels and scripts that do not name it, and taking it out again."""
