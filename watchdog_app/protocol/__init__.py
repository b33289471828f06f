"""Versioned messages, framing and the blocking client."""
