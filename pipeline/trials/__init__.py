"""Trials, their folders, and the sets of trials that a stage trains: grid, seeds, variants."""
