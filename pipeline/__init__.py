"""GaussCSE: Gaussian sentence embeddings, their training and evaluation. Importing it does nothing else."""
