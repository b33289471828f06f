"""Helpers for tests of several folders: `from support.waiting import until`."""
