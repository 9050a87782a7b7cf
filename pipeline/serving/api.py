"""The HTTP API: FastAPI routes. `/docs` shows them."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Mapping
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

from pipeline.data.schema import RELATIONS
from pipeline.gaussian.distribution import Gaussian
from pipeline.models.relation_head import FORMULAS
from pipeline.registry.webhooks import WebhookError, says_champion_moved
from pipeline.serving.bodies import (
    EmbeddingList,
    Embeddings,
    Encoded,
    ModelList,
    Operation,
    Outputs,
    Problem,
    RelationPairs,
    Relations,
    Results,
    Search,
    SentencePairs,
    Sentences,
    Similarities,
)
from pipeline.serving.champion import ChampionFollower
from pipeline.serving.guard import WEBHOOK
from pipeline.serving.limits import Limits, Refusal, error_body
from pipeline.serving.metrics import Metrics
from pipeline.serving.page import add_page
from pipeline.serving.replica import Job
from pipeline.serving.served import Served
from pipeline.utils.errors import UserError, last_line

# The most results of a search, for all its sentences together.
_MOST_TOGETHER = 20_000

_PROBLEMS: Any = {
    status: {"model": Problem, "description": words}
    for status, words in {
        400: "the body is not JSON",
        408: "the body was not complete in time",
        409: "the model that answers cannot do this",
        413: "too much",
        422: "not a request of this kind",
        503: "no model yet, or too many requests",
        504: "not answered in time",
    }.items()
}
_NO_TOKEN: Any = {401: {"model": Problem, "description": "no token, or a wrong one"}}
_NOT_READY: Any = {503: {"model": Problem, "description": "no model is ready"}}


def create_app(
    champion: ChampionFollower, limits: Limits, metrics: Metrics, secret: str | None = None, *, token: bool = False
) -> FastAPI:
    """The routes. `pipeline.serving.guard` checks token, size and time before them.

    Args:
        token: whether the guard asks for one; the API's description says so.
    """
    app = FastAPIOffline(
        redoc_url=None,
        redirect_slashes=False,
        title=f"GaussCSE: {champion.name}",
        description="Sentence embeddings, and how two sentences relate. Answers name the model's version; /health describes it.",
        version="1",
    )
    _show_errors(app)
    router = APIRouter(dependencies=[Depends(HTTPBearer(auto_error=False))], responses=_NO_TOKEN) if token else APIRouter()
    _add_questions(router, champion, limits)
    _add_embeddings(router, champion, limits)
    _add_state(router, champion, metrics)
    app.include_router(router)
    _add_probes(app, champion)
    if secret is not None:
        _add_webhook(app, champion, secret)
    add_page(app)
    return app


def _add_questions(router: APIRouter, champion: ChampionFollower, limits: Limits) -> None:
    # One at a time, since each uses all cores. The search of a request that was given up goes on, unless it still waits.
    searching = ThreadPoolExecutor(1, "search")

    @router.post("/encode", response_model=Encoded, responses=_PROBLEMS)
    async def encode(body: Sentences) -> Response:
        """Mean and variance of each sentence."""
        served, encoded = await champion.ask(Job("encode", limits.texts("sentences", body.sentences)))
        # Ray's arrays are read-only, of which torch warns.
        gaussian = Gaussian(*(torch.from_numpy(numbers.copy()) for numbers in encoded))
        return _json({"model": served.model, "mean": encoded.mean, "variance": gaussian.variance.numpy()})

    @router.post("/similarity", response_model=Similarities, responses=_PROBLEMS)
    async def similarity(body: SentencePairs) -> Response:
        """sim(a‖b) of each pair. If the model was trained on entailment: how much b entails a."""
        served, answer = await champion.ask(Job("similarity", *limits.pairs(("a", "b"), body.a, body.b)))
        return _json({"model": served.model, "similarity": answer})

    @router.post("/relation", response_model=Relations, responses=_PROBLEMS)
    async def relation(body: RelationPairs) -> Response:
        """Probabilities of entailment, neutral, contradiction and reversed entailment, by the model's relation head."""
        pairs = limits.pairs(("premises", "hypotheses"), body.premises, body.hypotheses)
        served = champion.answering()
        if not served.has_relation:
            raise Refusal(409, f"{served.model} has no relation head; ask /similarity")
        served, answer = await champion.ask(Job("relation", *pairs), served)
        return _json({"model": served.model, "relation": [dict(zip(RELATIONS, row, strict=True)) for row in answer]})

    @router.post("/operate", response_model=Outputs, responses=_PROBLEMS)
    async def operate(body: Operation) -> Response:
        """What an operator of the model makes of one or two sentences: an embedding, and a sentence if `write` asks for it."""
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
        served, (mean, texts) = await champion.ask(Job(body.operator, *sides, write=body.write), served)
        return _json({"model": served.model, "mean": mean, "text": texts})

    @router.post("/search", response_model=Results, responses=_PROBLEMS)
    async def search(body: Search) -> Response:
        """The rows of a corpus that entail a sentence, or that it entails."""
        texts = limits.texts("sentences", body.sentences)
        if len(texts) * body.k > _MOST_TOGETHER:
            raise Refusal(413, f"{len(texts)} sentences with k = {body.k}; ask for at most {_MOST_TOGETHER} results at once")
        served = champion.answering()
        corpus = served.corpus
        if corpus is None:
            raise Refusal(409, f"{served.model} does not search: {served.no_corpus}")
        served, encoded = await champion.ask(Job("encode", texts), served)
        queries = Gaussian(*(torch.from_numpy(numbers.copy()) for numbers in encoded))
        least = -math.inf if body.min_sim is None else body.min_sim
        work = partial(corpus.search, queries, body.way, body.k, least, body.by)
        results = await asyncio.get_running_loop().run_in_executor(searching, work)
        return _json({"model": served.model, "results": results})


def _add_embeddings(router: APIRouter, champion: ChampionFollower, limits: Limits) -> None:
    no_such: Any = {404: {"model": Problem, "description": "another model than the one that is served"}}

    @router.post("/v1/embeddings", response_model=EmbeddingList, responses=_PROBLEMS | no_such)
    async def embeddings(body: Embeddings) -> Response:
        """The means, as clients of OpenAI's API expect them; they are not scaled to length 1."""
        texts = limits.texts("input", [body.input] if isinstance(body.input, str) else body.input)
        served = champion.answering()
        if body.model not in (champion.name, served.model):
            raise Refusal(404, f"model: {body.model!r} is not served here; {served.model} ({champion.name!r}) is")
        served, means = await champion.ask(Job("means", texts), served)
        dim = means.mean.shape[1]
        if body.dimensions not in (None, dim):
            raise Refusal(422, f"dimensions: {served.model} has {dim}, which cannot be changed")
        float32 = body.encoding_format == "float"
        data = [
            {"object": "embedding", "index": row, "embedding": mean if float32 else base64.b64encode(mean.tobytes()).decode()}
            for row, mean in enumerate(means.mean)
        ]
        usage = {"prompt_tokens": means.tokens, "total_tokens": means.tokens}
        return _json({"object": "list", "data": data, "model": served.model, "usage": usage})

    @router.get("/v1/models", response_model=ModelList, responses=_NOT_READY)
    async def models() -> dict[str, Any]:
        """The names that /v1/embeddings takes; clients of OpenAI's API ask for them."""
        served = champion.answering()
        about = {"object": "model", "created": int(served.since), "owned_by": "gausscse"}
        return {"object": "list", "data": [about | {"id": name} for name in (champion.name, served.model)]}


def _add_state(router: APIRouter, champion: ChampionFollower, metrics: Metrics) -> None:
    @router.get("/health")
    async def health() -> dict[str, Any]:
        """Which version answers since when (seconds since 1970), whether a champion was kept out and why."""
        return {
            "status": _status(champion.served, champion),
            "serving": _about(champion.served),
            "refused": champion.refused and asdict(champion.refused),
            "registry": champion.registry_error,
        }

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_probes(app: FastAPI, champion: ChampionFollower) -> None:
    @app.get("/live")
    async def live() -> dict[str, bool]:
        """Liveness: this process answers."""
        return {"live": True}

    @app.get("/ready", responses=_NOT_READY)
    async def ready() -> dict[str, bool]:
        """Readiness: a model answers."""
        served = champion.answering()
        if not served.replicas:
            raise Refusal(503, f"no replica of {served.model} runs; Ray Serve starts another one")
        return {"ready": True}


def _add_webhook(app: FastAPI, champion: ChampionFollower, secret: str) -> None:
    @app.post(WEBHOOK, status_code=204)
    async def webhook(request: Request) -> None:
        """For MLflow's webhook: look at the champion now, not at the next poll. Its signature replaces the token."""
        try:
            if says_champion_moved(request.headers, await request.body(), champion.name, secret):
                champion.moved.set()
        except WebhookError as error:
            raise Refusal(401, str(error)) from None


def _status(served: Served | None, champion: ChampionFollower) -> str:
    if served is None:
        return "starting" if champion.refused is None else "failing"
    fine = served.replicas and champion.refused is None and champion.registry_error is None
    return "ok" if fine else "degraded"


def _about(served: Served | None) -> dict[str, Any] | None:
    if served is None:
        return None
    search = "yes" if served.corpus is not None else f"no: {served.no_corpus}"
    return {
        "model": served.model,
        "version": served.number,
        "since": served.since,
        "replicas": served.replicas,
        "score": served.kind,
        "similarity": FORMULAS[served.kind],
        # Whether its similarity says which sentence entails which, and whether it gives probabilities of relations.
        "directed": served.directed,
        "relation": served.has_relation,
        "operators": bool(served.operations),
        "operations": [*served.operations],
        "search": search,
    }


def _show_errors(app: FastAPI) -> None:
    """Every error is one line in one shape."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return _problem(error.status, str(error))

    @app.exception_handler(UserError)
    async def impossible(_: Request, error: UserError) -> Response:
        # From a replica it comes with Ray's traceback before it.
        return _problem(422, last_line(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first: dict[str, Any] = dict(error.errors()[0])
        if first["type"] == "json_invalid":
            return _problem(400, f"the body is not JSON: {first['ctx']['error']}")
        if first["loc"] == ("body",) and isinstance(error.body, bytes):
            return _problem(422, "the body: is taken as JSON only with the header `Content-Type: application/json`")
        where = ".".join(str(part) for part in first["loc"][1:])
        return _problem(422, f"{where or 'the body'}: {first['msg']}")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        # Starlette raises it again after the answer, and the guard logs it.
        return _problem(500, f"an error of the server; its log has more about this {type(error).__name__}")

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return _problem(error.status_code, str(error.detail), error.headers)


def _problem(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    headers = {"retry-after": "1"} if status == 503 else headers
    # What came from the request may hold half a character, which JSON in UTF-8 cannot.
    plain = why.encode("utf-8", "replace").decode()
    return Response(orjson.dumps(error_body(status, plain)), status, headers, media_type="application/json")


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, default=str, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
