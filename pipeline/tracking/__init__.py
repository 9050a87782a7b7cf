"""MLflow runs, and the thread that logs a trial's progress to them."""
