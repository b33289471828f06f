"""Training loops of the program's own: their objects, random numbers and passes over data."""
