"""A Keras fit, on every backend and of both generations: its state, its place, its resume."""
