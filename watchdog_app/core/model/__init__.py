"""Records of one look at the machine, and what is derived from them."""
