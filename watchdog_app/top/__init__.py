"""`watchdog top`: the live view in a terminal, a client of the daemon."""
