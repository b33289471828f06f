"""How numbers, names and secrets are shown: floats and strings in, strings out."""
