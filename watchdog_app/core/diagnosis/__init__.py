"""Problems and their causes: GPU faults, stalled trainings, programs that ended."""
