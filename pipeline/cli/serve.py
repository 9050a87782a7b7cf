"""`gausscse serve`: serves the champion over HTTP, and a new champion within seconds of its promotion (docs/serving.md)."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.cluster.preflight import load_place
from pipeline.config.execution import EXECUTION_FILE, ClusterParams
from pipeline.config.params import PARAMS_FILE
from pipeline.models.model_dir import ENGINES, check_engine
from pipeline.serving.limits import Limits, loopback
from pipeline.utils.errors import UserError
from pipeline.utils.parser import Parser, above_zero, whole
from pipeline.utils.uris import URI_VARIABLE, uri_of_environment

TOKEN = "GAUSSCSE_SERVE_TOKEN"
"""Environment variable with the token that requests must send, or several with commas between them."""
_SHORTEST_TOKEN = 16


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    options = _parser().parse_args(arguments)
    least, most = _replicas(options.replicas)
    tokens = _tokens(options.host)
    limits = Limits(**{field.name: getattr(options, f"max_{field.name}") for field in dataclasses.fields(Limits)})
    check_engine(options.engine)
    name, cluster = _place(options.name)
    if cluster.by_jobs:
        raise UserError("execution.yaml: cluster.address: serve runs on a node of the cluster; write host:port or auto there")
    # Ray reads this when it is imported. Without it, a thread of Ray Serve's handles, which outlives the server's Ray, may start
    # another Ray.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    # As for training (`pipeline.cluster.session`): torch's threads that wait for each other must not keep the front waiting.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    # Imported only after the checks: these take seconds.
    from pipeline.inference.corpus import being_encoded, model_of
    from pipeline.registry.fetching import default_uri, version_of
    from pipeline.registry.following import VERSION

    uri = default_uri()
    version_of(f"models:/{name}@champion", uri)
    for corpus in options.corpus:
        # A folder of each version may be encoded later, and one that is being updated is looked at again.
        if VERSION not in corpus and not being_encoded(corpus):
            model_of(corpus)
    try:
        from pipeline.serving.server import Settings, run
    except ImportError as error:
        raise UserError(f"serve needs {error.name}: pip install 'gausscse-pipeline[serve]'") from None
    place = (options.host, options.port, tokens, options.every)
    settings = Settings(name, uri, *place, options.corpus, least, most, options.threads, options.engine, limits)
    run(settings, cluster)


def _place(name: str | None) -> tuple[str, ClusterParams]:
    """The registered model, and where its replicas run: as the project in the current folder says, or on this machine.

    Raises:
        UserError: this is not a project, and the environment or the command line lacks what it would say.
    """
    if Path(PARAMS_FILE).exists() or Path(EXECUTION_FILE).exists():
        registered, execution = load_place()
        return name or registered, execution.cluster
    if name is None or uri_of_environment() is None:
        raise UserError(
            f"{PARAMS_FILE}: no such file; run in a project's root, or elsewhere with --name and the environment variable "
            f"{URI_VARIABLE}"
        )
    return name, ClusterParams()


def _parser() -> Parser:
    parser = Parser(prog="gausscse serve", description="Serve the champion over HTTP, and each new champion after it.")
    parser.add_argument("--name", help="the registered model; default: register.name of params.yaml, if there is one")
    parser.add_argument("--host", default="127.0.0.1", help=f"default: 127.0.0.1; any other needs a token in {TOKEN}")
    parser.add_argument("--port", type=whole(0, 65535), default=8000, help="default: 8000")
    corpora = "output of gausscse encode to search in, such as encoded/{version}; repeatable"
    parser.add_argument("--corpus", action="append", default=[], metavar="FOLDER", help=corpora)
    parser.add_argument("--replicas", default="1:1", metavar="LEAST:MOST", help="copies of the model; default: 1:1")
    engine = "computes the model: torch, or on the CPU openvino or openvino-int8, which is faster but rounds; default: torch"
    parser.add_argument("--engine", choices=ENGINES, default="torch", help=engine)
    threads = "threads of each; default: all cores or OMP_NUM_THREADS, divided; on a cluster cluster.cpus_per_worker"
    parser.add_argument("--threads", type=whole(1), metavar="N", help=threads)
    parser.add_argument(
        "--every", type=above_zero, default=2.0, metavar="SECONDS", help="between two looks at the champion; default: 2"
    )
    for field in dataclasses.fields(Limits):
        words = f"the most {field.metadata['help']}; default: {field.default}"
        option = f"--max-{field.name.replace('_', '-')}"
        parser.add_argument(option, type=whole(1), default=field.default, metavar="N", help=words)
    return parser


def _replicas(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    least, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= least <= most:
        raise UserError(f"--replicas {text}: write the fewest and the most, such as 1:4")
    return least, most


def _tokens(host: str) -> list[str]:
    # Taken out of the environment, which all of Ray's processes inherit.
    tokens = [token.strip() for token in os.environ.pop(TOKEN, "").split(",") if token.strip()]
    if any(len(token) < _SHORTEST_TOKEN or not token.isascii() for token in tokens):
        raise UserError(f"{TOKEN}: a token needs at least {_SHORTEST_TOKEN} ASCII characters, such as openssl rand -hex 16 gives")
    if not tokens and not loopback(host):
        raise UserError(f"--host {host}: others can reach it, so set {TOKEN} to a token that they must send")
    return tokens
