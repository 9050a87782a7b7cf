"""`gausscse COMMAND`: the command line, to be run from a project's root. (`python -m stages.NAME` runs a stage.)

Each command is a module of this package with a function `main(arguments)`. Only the requested module is imported, because torch,
Ray and MLflow take seconds.

Exit codes: 0 done; 1 the answer is no, or the operating system failed; 2 wrong usage or input, explained in one line; 130 and 143
interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import sys

from pipeline.families.family import families, part
from pipeline.utils.environment import set_defaults
from pipeline.utils.errors import UserError, run_stage
from pipeline.utils.logs import set_up

COMMANDS = {
    "check": "look for mistakes in params.yaml, execution.yaml and the raw data before anything runs",
    "preset": "write a preset into params.yaml",
    "corpora": "how to get the official corpora, with sizes and licences",
    "registry": "status, promote, rollback, compare, history, follow, serve: which version is champion, and why",
    "relation": "fit a relation head to a finished model",
    "probe": "score sentences where a phrase or the word order decides",
    "encode": "turn a Parquet corpus into Gaussians",
    "search": "find sentences in an encoded corpus that entail a sentence, or are entailed by it",
    "serve": "serve the champion over HTTP, and each new champion after it",
    "export": "write a model as a sentence-transformers or ONNX model",
    "push": "put a model with its card on the Hugging Face hub",
    "submit": "send the prepared data and a stage to a Ray cluster",
    "gc": "list what nothing refers to in cluster.storage, or remove it",
    "reference": "write docs/parameters.md and the JSON schemas",
}
VERBOSITY = {"-v": "debug", "--verbose": "debug", "-q": "warning", "--quiet": "warning"}
"""Option before the command → level of `pipeline.utils.logs`. It overrides GAUSSCSE_LOG."""


def main() -> None:
    """Run the command that the command line names."""
    run_stage(_run)


def _run() -> None:
    words = sys.argv[1:]
    while words and words[0] in VERBOSITY:
        set_up(VERBOSITY[words.pop(0)])
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        raise SystemExit(0 if words else 2)
    name, *arguments = words
    if name not in (known := _commands()):
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "`gausscse --help` lists them"
        raise UserError(f"gausscse: no command {name!r}; {hint}")
    set_defaults()
    owner = next((family for family in families() if name in family.commands), None)
    module = importlib.import_module(f"pipeline.cli.{name}") if owner is None else part(owner, f"command_{name}")
    module.main(arguments)


def _commands() -> dict[str, str]:
    """All commands: name → what it does. Those of a family are its parts `command_NAME`."""
    return {**COMMANDS, **{name: words for family in families() for name, words in family.commands.items()}}


def _help() -> str:
    lines = [f"  {name:<10} {words}" for name, words in _commands().items()]
    return "\n".join(
        [
            "usage: gausscse [-v | -q] COMMAND ...",
            "",
            "Run from the root of a project. `gausscse COMMAND --help` says more.",
            "",
            *lines,
            "",
            "  -v, --verbose  also show details, such as the folder of a trial",
            "  -q, --quiet    show only results, warnings and errors",
            "",
            "GAUSSCSE_LOG=debug|info|warning in the environment does the same for commands and stages.",
            "`dvc repro` runs the pipeline, `python -m stages.NAME` one stage.",
        ]
    )
