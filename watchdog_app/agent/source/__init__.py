"""The lines that resume a training, derived from the text of its program. Runs no code of it."""
