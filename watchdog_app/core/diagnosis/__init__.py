"""What is wrong and why: faults of cards, stalled trainings, programs that ended."""
