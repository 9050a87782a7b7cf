"""`python -m pipeline.cli` is the same as `gausscse`."""

from pipeline.cli.main import main

main()
