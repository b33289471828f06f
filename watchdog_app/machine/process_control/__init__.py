"""The only code that changes the machine."""
