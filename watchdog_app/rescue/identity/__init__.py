"""What a training computes, as plain records, and whether a rescue fits it."""
