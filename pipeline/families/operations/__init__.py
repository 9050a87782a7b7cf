"""Operation rows: InterSent."""
