"""General tools without knowledge of sentences: errors, atomic file writes, safetensors, addresses."""
