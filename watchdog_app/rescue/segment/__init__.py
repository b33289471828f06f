"""What a training shows of itself, so that it can be copied from outside while it stands still."""
