"""Trainings that name no Rescue: found where the framework comes by, saved, and let go of."""
