"""The tray process: icon, menu and notifications from a status, and the backends that show them."""
