"""What a training tells of itself while it trains, so that it can be saved from outside."""
