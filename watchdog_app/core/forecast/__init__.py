"""The forecast of exhaustion: one streaming engine for every ceiling."""
