"""`watchdog.resume()`: a notebook's or program's lines that resume from a rescue."""
