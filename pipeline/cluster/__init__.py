"""Ray: sessions, trials (Ray Tune, and Ray Train where workers train together), jobs, encoding on many workers. Only this package
of the library imports ray.

Finished trials are kept in the trial store (`pipeline.trials.store`) and are not run again. Ray's own experiment state is never
read back.

Each trial has two to four processes. Those that only watch it (`training_run`, `worker_group`) do not import torch, transformers,
ray.tune or mlflow, which halves the start-up time of a trial.
"""
