"""A `fit` of Keras: its state, its place in the data and its resume, on each backend."""
