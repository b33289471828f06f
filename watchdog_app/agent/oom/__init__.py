"""A training that runs out of memory by itself: what is saved of it, and how it goes on."""
