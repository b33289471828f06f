"""What puts watchdog on a user's desktop, and takes it off again without a trace."""
