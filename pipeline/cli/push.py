"""`gausscse push MODEL REPO`: puts a model with its card on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.utils.logs import log
from pipeline.utils.parser import MODEL, Parser


def main(arguments: Sequence[str]) -> None:
    """Push the model that the command line names."""
    parser = Parser(
        prog="gausscse push",
        description="Put a model with its card into a repository of the Hugging Face hub, whose head then holds exactly this "
        "model. The token is that of `hf auth login` or HF_TOKEN.",
    )
    parser.add_argument("model", help=MODEL)
    parser.add_argument("repo", help="OWNER/NAME; made if it does not exist")
    parser.add_argument("--tag", help="a git tag for it, such as v3")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    options = parser.parse_args(arguments)
    from pipeline.models.hub import push
    from pipeline.registry.loading import encoder_folder

    with encoder_folder(options.model) as folder:
        log.info(f"{options.repo}: {push(folder, options.repo, tag=options.tag, private=options.private)}")
