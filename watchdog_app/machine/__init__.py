"""Read the machine and control its processes: GPUs, sensors, process control."""
