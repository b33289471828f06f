"""`watchdog.resume()`: resume a notebook or a program from a rescue."""
