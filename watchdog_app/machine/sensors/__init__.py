"""The only code that reads the machine."""
