"""Records of one sample of the machine, and the records derived from them."""
