"""`watchdog top`: the live view in a terminal. A client like any other."""
