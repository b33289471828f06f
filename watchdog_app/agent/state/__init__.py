"""Tensors, values and random numbers of a training, in the form in which a rescue stores them."""
