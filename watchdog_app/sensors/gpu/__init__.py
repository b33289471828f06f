"""Graphics cards, read by a child process: a driver that hangs or crashes takes nobody along."""
