"""The commands of the command line: `gausscse COMMAND` (pipeline/cli/main.py)."""
