"""Benchmarks. Ratios compare variants measured in the same run. `python -m bench` runs all, `python -m bench NAME` runs one."""
