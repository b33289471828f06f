"""Reports about a training's memory and threads."""
