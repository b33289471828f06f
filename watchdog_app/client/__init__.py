"""Messages, framing, transport and blocking client of the protocol between the programs."""
