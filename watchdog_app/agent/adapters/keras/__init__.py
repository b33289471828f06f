"""A `fit` of Keras: its state, its position in the data and its resume, on each backend."""
