"""Rescues on disk: written whole or not at all, read back, listed, chosen."""
