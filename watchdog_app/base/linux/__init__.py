"""The parser of /proc, of mounted memory groups and of small kernel files."""
