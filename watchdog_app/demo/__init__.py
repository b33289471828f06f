"""`watchdog demo`: the rescue, narrated, on a real training in a real memory group."""
