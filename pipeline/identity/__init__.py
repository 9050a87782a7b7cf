"""Digests of all that a result depends on besides parameters and data: code, backbone files, library versions."""
