"""The tray companion: icon, menu and notifications from a status, and the shell that shows them."""
