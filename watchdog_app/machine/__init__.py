"""What reads and changes the machine: GPUs, and later sensors and process control."""
