"""What happened, on disk: written by the daemon, read with or without one."""
