"""`gausscse COMMAND`: the command line, to be run from a project's root. (`python -m stages.NAME` runs a stage.)

Each command is a module of this package with a function `main(arguments)`. Only the requested module is imported, because torch,
Ray and MLflow take seconds.

Exit codes: 0 done; 1 the answer is no, or the operating system failed; 2 wrong usage or input, explained in one line; 130 and 143
interrupted.
"""

from __future__ import annotations

import argparse
import importlib
from importlib.metadata import PackageNotFoundError, version

from pipeline.families.family import families, part
from pipeline.utils.environment import set_defaults
from pipeline.utils.errors import run_stage
from pipeline.utils.logs import set_up
from pipeline.utils.parser import Parser

COMMANDS = {
    "check": "look for mistakes in params.yaml, execution.yaml and the raw data before anything runs",
    "init": "make a project of your own file of pairs",
    "split": "divide a file of pairs into train, dev and test",
    "preset": "write presets into params.yaml",
    "corpora": "how to get the official corpora, with sizes and licences",
    "registry": "status, promote, rollback, compare, history, follow, serve: which version is champion, and why",
    "probe": "score sentences where a phrase or the word order decides",
    "ask": "say what a model says of two sentences",
    "encode": "turn a Parquet corpus into Gaussians",
    "search": "find sentences in an encoded corpus that entail a sentence, or are entailed by it",
    "serve": "serve the champion over HTTP, and each new champion after it",
    "export": "write a model as a sentence-transformers or ONNX model, or with fewer dimensions",
    "push": "put a model with its card on the Hugging Face hub",
    "submit": "send the prepared data and a stage to a Ray cluster",
    "gc": "list what nothing refers to in cluster.storage, or remove it",
    "reference": "write docs/parameters.md and the JSON schemas",
}
_EPILOG = """
GAUSSCSE_LOG=debug|info|warning in the environment does the same as -v and -q for commands and stages.
`dvc repro` runs the pipeline, `python -m stages.NAME` one stage.
"""


def main() -> None:
    """Run the command that the command line names."""
    run_stage(_run)


def _version() -> str:
    try:
        return version("gausscse-pipeline")
    except PackageNotFoundError:
        # In a job, which brings the code without installing it.
        return "(not installed)"


def _run() -> None:
    # A command of a family is its part `command_NAME`.
    owners = {name: family for family in families() for name in family.commands}
    commands = COMMANDS | {name: family.commands[name] for name, family in owners.items()}
    parser = Parser(
        prog="gausscse",
        usage="gausscse [-v | -q] COMMAND ...",
        description="Run from the root of a project. `gausscse COMMAND --help` says more.",
        epilog="\n".join(["commands:", *(f"  {name:<10} {words}" for name, words in commands.items()), _EPILOG]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gausscse {_version()}")
    # What an argument of this kind does: it prints a line and ends.
    line, words = f"complete -o default -W '{' '.join(commands)}' gausscse", "print a line for .bashrc that completes commands"
    parser.add_argument("--completion", action="version", version=line, help=words)
    details, results = "also show details, such as the folder of a trial", "show only results, warnings and errors"
    parser.add_argument("-v", "--verbose", action="store_const", const="debug", dest="level", help=details)
    parser.add_argument("-q", "--quiet", action="store_const", const="warning", dest="level", help=results)
    parser.add_argument("command", metavar="COMMAND", choices=commands, help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.level:
        set_up(options.level)
    set_defaults()
    name = options.command
    module = part(owners[name], f"command_{name}") if name in owners else importlib.import_module(f"pipeline.cli.{name}")
    module.main(options.arguments)
