"""The state that a training publishes, so that another process can copy it while it is stopped."""
