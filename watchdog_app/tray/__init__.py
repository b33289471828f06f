"""The tray companion: pure state and a thin desktop shell."""
