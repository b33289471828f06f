"""Small helpers for every other package; they import nothing else of the project."""
