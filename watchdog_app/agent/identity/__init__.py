"""Facts about what a training computes, read from the running program for `rescue.identity`."""
