"""A memory group with a reserve, in which a task is stopped at its limit instead of killed."""
