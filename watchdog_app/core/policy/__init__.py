"""
Decisions from readings: pure, so a replay gives the same result. Entry point: `engine.Engine`.
"""
