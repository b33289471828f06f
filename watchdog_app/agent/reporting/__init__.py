"""The line to the daemon, and what is told over it."""
