"""Which saved tensor belongs to which variable."""
