"""The three families of models, each behind the interface of `pipeline.families.family`."""
