"""Storage for results: local and remote file systems, objects named by content, mirrored folders. Retries belong here."""
