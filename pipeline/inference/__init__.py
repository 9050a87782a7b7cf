"""Uses of a finished model: bulk encoding, entailment search, export."""
