"""Notifications: which are shown, when, and by which channel."""
