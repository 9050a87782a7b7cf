"""The HTTP API: FastAPI routes. `/docs` shows them."""

from __future__ import annotations

import asyncio
import base64
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
import torch
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException as StarletteHTTPException

from pipeline.data.decision import called, decided
from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.relation_head import FORMULAS
from pipeline.models.threshold import rule_of
from pipeline.serving.bodies import ANSWERS, Embeddings, Operation, Problem, RelationPairs, Search, SentencePairs, Sentences
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.guard import problem
from pipeline.serving.limits import Limits, Refusal
from pipeline.serving.metrics import Metrics
from pipeline.serving.model import Job
from pipeline.serving.page import add_page
from pipeline.utils.errors import UserError, last_line

# The most results of a search, for all its sentences together.
_MOST_TOGETHER = 20_000


def create_app(champion: ChampionFollower, limits: Limits, metrics: Metrics, *, token: bool = False) -> FastAPI:
    """The routes. `pipeline.serving.guard` checks token, size and time before them.

    Args:
        token: whether the guard asks for one; the API's description says so.
    """
    app = FastAPIOffline(
        redoc_url=None,
        redirect_slashes=False,
        title=f"GaussCSE: {champion.name}",
        description="Sentence embeddings, and how two sentences relate. Answers name the `model` (its version; /health describes "
        "it), the number of texts that were `cut` because they are too long, and of texts with many words `unknown` to it.",
        version="1",
    )
    _show_errors(app)
    router = APIRouter(
        dependencies=[Depends(HTTPBearer(auto_error=False))] if token else [],
        responses={"default": {"model": Problem, "description": "not answered; the message says why"}},
    )
    _add_questions(router, champion, limits)
    _add_embeddings(router, champion, limits)
    _add_state(router, champion, metrics)
    # Not `include_router`, which looks for the route once more in each request and takes a quarter of the front's time.
    app.router.routes.extend(router.routes)
    _add_probes(app, champion)
    add_page(app)
    for path, operations in app.openapi()["paths"].items():
        for operation in operations.values():
            if path in ANSWERS:
                operation["responses"]["200"]["content"]["application/json"]["example"] = ANSWERS[path]
    return app


def _add_questions(router: APIRouter, champion: ChampionFollower, limits: Limits) -> None:
    # One at a time, since each uses all cores. The search of a request that was given up goes on, unless it still waits.
    searching = ThreadPoolExecutor(1, "search", torch.set_num_threads, (torch.get_num_threads(),))

    @router.post("/encode")
    async def encode(body: Sentences) -> Response:
        """`mean` and `variance` of each sentence: D numbers each."""
        encoded, about = await champion.ask(Job("encode", limits.texts("sentences", body.sentences)))
        # Ray's arrays are read-only, of which torch warns.
        gaussian = Gaussian(*(torch.from_numpy(numbers.copy()) for numbers in encoded))
        return _json({**about, "mean": encoded.mean, "variance": gaussian.variance.numpy()})

    @router.post("/similarity")
    async def similarity(body: SentencePairs) -> Response:
        """`similarity`: sim(a‖b) of each pair. If the model was trained on entailment: how much b entails a."""
        answer, about = await champion.ask(Job("similarity", *limits.pairs(("a", "b"), body.a, body.b)))
        return _json({**about, "similarity": answer})

    @router.post("/relation")
    async def relation(body: RelationPairs) -> Response:
        """`relation`: probabilities of entailment, neutral, contradiction and reversed, by the relation head. `label`: the one
        that the model settles on, entailment where /entails is true."""
        pairs = limits.pairs(("premises", "hypotheses"), body.premises, body.hypotheses)
        served = champion.answering()
        if not served.has_relation:
            raise Refusal(409, f"{served.model} has no relation head; ask /similarity")
        answer, about = await champion.ask(Job("relation", *pairs), served)
        named = [dict(zip(RELATIONS, row, strict=True)) for row in answer]
        return _json({**about, "relation": named, "label": decided(answer, *rule_of(served.calibration))})

    @router.post("/entails")
    async def entails(body: RelationPairs) -> Response:
        """`entails`: whether the `score` of each pair reaches the model's `threshold`, which was found on its development set."""
        pairs = limits.pairs(("premises", "hypotheses"), body.premises, body.hypotheses)
        served = champion.answering()
        threshold, rule = rule_of(served.calibration)
        if threshold is None:
            raise Refusal(409, f"{served.model} has no threshold; ask /similarity")
        scores, about = await champion.ask(Job("score", *pairs), served)
        yes = [called(score, threshold, rule) for score in scores]
        return _json({**about, "threshold": threshold, "entails": yes, "score": scores})

    @router.post("/operate")
    async def operate(body: Operation) -> Response:
        """What an operator makes of one or two sentences: `mean`, and the sentence `text` if `write` asks for it."""
        sides = (limits.texts("a", body.a),) if body.b is None else limits.pairs(("a", "b"), body.a, body.b)
        served = champion.answering()
        if not served.operations:
            raise Refusal(409, f"{served.model} has no operators")
        if body.operator not in served.operations:
            raise Refusal(422, f"operator: {body.operator[:40]!r} is unknown; {served.model} has {', '.join(served.operations)}")
        if (body.b is None) != (served.operations[body.operator] == 1):
            raise Refusal(422, f"b: {body.operator} takes {'no b' if body.b is not None else 'two sentences, a and b'}")
        if body.write and not served.writes:
            raise Refusal(409, f"{served.model} has no decoder")
        (mean, texts), about = await champion.ask(Job(body.operator, *sides, write=body.write), served)
        return _json({**about, "mean": mean, "text": texts})

    @router.post("/search")
    async def search(body: Search) -> Response:
        """`results`: for each sentence the rows of a corpus that entail it, or that it entails, with `row` and `score`."""
        texts = limits.texts("sentences", body.sentences)
        if len(texts) * body.k > _MOST_TOGETHER:
            raise Refusal(413, f"{len(texts)} sentences with k = {body.k}; ask for at most {_MOST_TOGETHER} results at once")
        served = champion.answering()
        corpus = served.corpus
        if corpus is None:
            raise Refusal(409, f"{served.model} does not search: {served.no_corpus}")
        queries, about = await champion.ask(Job("query", texts), served)
        least = -math.inf if body.min_sim is None else body.min_sim
        work = partial(corpus.search, queries, body.way, body.k, least, body.by)
        try:
            results = await asyncio.get_running_loop().run_in_executor(searching, work)
        except UserError as error:
            raise Refusal(409, f"by: {error}") from None
        return _json({**about, "results": results})


def _add_embeddings(router: APIRouter, champion: ChampionFollower, limits: Limits) -> None:
    @router.post("/v1/embeddings")
    async def embeddings(body: Embeddings) -> Response:
        """The means, as clients of OpenAI's API expect them; they are not scaled to length 1."""
        texts = limits.texts("input", [body.input] if isinstance(body.input, str) else body.input)
        served = champion.answering()
        if body.model not in (champion.name, served.model):
            raise Refusal(404, f"model: {body.model!r} is not served here; {served.model} ({champion.name!r}) is")
        means, about = await champion.ask(Job("means", texts), served)
        dim = means.mean.shape[1]
        if body.dimensions not in (None, dim):
            raise Refusal(422, f"dimensions: {served.model} has {dim}, which cannot be changed")
        float32 = body.encoding_format == "float"
        data = [
            {"object": "embedding", "index": row, "embedding": mean if float32 else base64.b64encode(mean.tobytes()).decode()}
            for row, mean in enumerate(means.mean)
        ]
        usage = {"prompt_tokens": means.tokens, "total_tokens": means.tokens}
        return _json({"object": "list", "data": data, **about, "usage": usage})

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The names that /v1/embeddings takes; clients of OpenAI's API ask for them."""
        served = champion.answering()
        about = {"object": "model", "created": int(served.since), "owned_by": "gausscse"}
        return {"object": "list", "data": [about | {"id": name} for name in (champion.name, served.model)]}


def _add_state(router: APIRouter, champion: ChampionFollower, metrics: Metrics) -> None:
    @router.get("/health")
    async def health() -> dict[str, Any]:
        """Which version answers since when (seconds since 1970), whether a champion was kept out and why."""
        served, refused = champion.served, champion.refused
        status, serving = "starting" if refused is None else "failing", None
        if served is not None:
            fine = served.replicas and refused is None and champion.registry_error is None
            status = "ok" if fine else "degraded"
            serving = {
                "model": served.model,
                "version": served.number,
                "since": served.since,
                "replicas": served.replicas,
                "score": served.kind,
                "similarity": FORMULAS[served.kind],
                # Whether its similarity says which sentence entails which, and whether it gives probabilities of relations.
                "directed": served.directed,
                "note": served.note,
                "relation": served.has_relation,
                "operators": bool(served.operations),
                "operations": [*served.operations],
                "search": "yes" if served.corpus is not None else f"no: {served.no_corpus}",
            }
        state = {"status": status, "serving": serving, "refused": refused and asdict(refused)}
        return {**state, "registry": champion.registry_error}

    @router.get("/metrics")
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_probes(app: FastAPI, champion: ChampionFollower) -> None:
    @app.get("/live")
    async def live() -> dict[str, bool]:
        """Liveness: this process answers."""
        return {"live": True}

    @app.get("/ready")
    async def ready() -> dict[str, bool]:
        """Readiness: a model answers."""
        served = champion.answering()
        if not served.replicas:
            raise Refusal(503, f"no replica of {served.model} runs; Ray Serve starts another one")
        return {"ready": True}


def _show_errors(app: FastAPI) -> None:
    """Every error is one line in one shape."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return problem(error.status, str(error))

    @app.exception_handler(UserError)
    async def impossible(_: Request, error: UserError) -> Response:
        # From a replica it comes with Ray's traceback before it.
        return problem(422, last_line(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = dict(error.errors()[0])
        if first["type"] == "json_invalid":
            return problem(400, f"the body is not JSON: {first['ctx']['error']}")
        if first["loc"] == ("body",) and isinstance(error.body, bytes):
            return problem(422, "the body: is taken as JSON only with the header `Content-Type: application/json`")
        where = ".".join(str(part) for part in first["loc"][1:])
        return problem(422, f"{where or 'the body'}: {first['msg']}")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        # Starlette raises it again after the answer, and the guard logs it.
        return problem(500, f"an error of the server; its log has more about this {type(error).__name__}")

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), error.headers)


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, default=str, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
