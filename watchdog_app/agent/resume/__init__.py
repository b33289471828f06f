"""`watchdog.resume()`: a notebook's or program's lines that go on from a rescue."""
