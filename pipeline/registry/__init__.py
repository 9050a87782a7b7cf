"""The MLflow model registry: versions of the encoder, which version is champion, and why.

The commands are under `gausscse registry`.
"""
