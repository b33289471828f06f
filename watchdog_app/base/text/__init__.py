"""Format numbers and names, and hide secrets: numbers and strings in, strings out."""
