"""A memory group with a reserve: at its limit a task is stopped, not killed."""
