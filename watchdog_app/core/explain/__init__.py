"""Build sentences for people from records."""
