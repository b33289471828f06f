"""`watchdog_app.resume()`: a notebook that was killed goes on where it was saved."""
