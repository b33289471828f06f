"""A memory group with a reserve, in which a task is held at its limit instead of killed."""
