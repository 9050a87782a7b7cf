"""Sources, cleaning, triplets and the token store."""
