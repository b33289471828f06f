"""How the programs talk: messages, framing, transport, blocking client."""
