"""A training that runs out of memory: save its state, explain the error, shrink its batches."""
