"""The code at a step boundary, and the connection to the daemon."""
