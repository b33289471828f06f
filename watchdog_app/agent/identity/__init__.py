"""What a training computes, gathered from a running program for `rescue.identity`."""
