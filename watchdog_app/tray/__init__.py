"""The tray companion: a status as icon, menu and notices, and the thin shell that shows it."""
