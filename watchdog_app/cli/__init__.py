"""The watchdog command: one file a subcommand."""
