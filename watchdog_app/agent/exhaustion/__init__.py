"""A training that runs out of memory by itself: saved as it was, or trained in parts."""
