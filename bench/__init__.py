"""Benchmarks: every figure a ratio measured side by side in one run. `python -m bench` runs all, `python -m bench NAME` one."""
