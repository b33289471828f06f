"""What lies on disk: whose it is and whether it fits, without a framework."""
