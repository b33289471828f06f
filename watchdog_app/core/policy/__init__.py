"""What shall be done now: pure, and so replayable. The face is `engine.Engine`."""
