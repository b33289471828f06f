"""Tensors, values and random numbers of a training, as a rescue holds them."""
