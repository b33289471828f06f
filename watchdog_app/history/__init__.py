"""The journal on disk: the daemon writes it; clients read it with or without a daemon."""
