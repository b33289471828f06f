"""Records as sentences."""
