"""Readers of /proc, of memory cgroups and of small kernel files."""
