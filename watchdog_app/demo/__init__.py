"""`watchdog demo`: show a rescue of a real training in a real memory group."""
