"""What is wrong and why: of cards, of trainings that stand still, of programs that ended."""
