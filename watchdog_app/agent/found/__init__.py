"""Find trainings without a Rescue through hooks of their framework, and save them."""
