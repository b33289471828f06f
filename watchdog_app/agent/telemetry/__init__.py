"""What is told about a training's memory and threads."""
