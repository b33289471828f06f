"""What lives in the training process: registration, step hook, save and restore."""
