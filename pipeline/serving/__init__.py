"""Serves the champion over HTTP (`gausscse serve`): Ray Serve runs the models, a FastAPI front takes the requests."""
