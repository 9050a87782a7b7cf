"""From sources to the token store: readers, cleaning, pairs, triplets, tokenizing."""
