"""Ray: sessions, trials (Ray Tune, and Ray Train where workers train together), jobs, encoding on many workers. Only this package
of the library imports ray.

Finished trials are kept in the trial store (`pipeline.trials.store`) and are not run again. Ray's own experiment state is never
read back.

Each trial has two to four processes, and all of them import this package. So torch, transformers, ray.tune and mlflow are
imported inside the functions that use them, which halves the start-up time of a trial.
"""
