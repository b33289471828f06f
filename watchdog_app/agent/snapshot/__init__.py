"""Publish the state of a running training, so that another process can save it."""
