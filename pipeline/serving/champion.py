"""Which model answers: follows the champion of the registry and replaces the model without losing a request.

A new champion is fetched and checked against its sums, started next to the model that answers, and asked its canary pairs. Only
then do requests go to it. The old one ends once its last request is answered. A champion that fails on the way stays out.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from pipeline.models.canaries import CanaryError, read_canaries
from pipeline.models.encoder import encoder_class
from pipeline.models.model_config import capabilities_of, score_kind_of
from pipeline.models.model_dir import CANARIES, embeddings_digest, note_of
from pipeline.models.relation_head import read_relation
from pipeline.models.threshold import read_calibration
from pipeline.registry.fetching import ENCODER, ModelVersion, fetched
from pipeline.registry.following import POLL, ChampionWatch
from pipeline.registry.versions import NoSuchVersion
from pipeline.serving.batches import Batches
from pipeline.serving.corpora import CorpusReader, searchable
from pipeline.serving.limits import Refusal
from pipeline.serving.metrics import Metrics
from pipeline.serving.model import Job
from pipeline.serving.runtime import Runtime
from pipeline.serving.served import Refused, Served
from pipeline.utils.errors import UserError, first_line, last_line
from pipeline.utils.logs import log

# Seconds after which a model that answers is shared again. Otherwise `gausscse gc` takes it for old after some days.
_SHARE_AGAIN = 6 * 3600.0


class ChampionFollower:
    """Follows the champion of a registered model, and asks the version that answers.

    Its attributes belong to the event loop; slow steps run in threads.
    """

    def __init__(
        self,
        name: str,
        uri: str,
        runtime: Runtime,
        corpora: Sequence[str],
        metrics: Metrics,
        seconds: float,
        every: float = POLL,
    ) -> None:
        """Args:
        name: the registered model.
        uri: MLflow's.
        runtime: runs the models.
        corpora: folders, with `VERSION` in place of the version's number.
        seconds: the time limit of a request.
        every: seconds between two looks at the alias.
        """
        self.name = name
        self.served: Served | None = None
        self.refused: Refused | None = None
        # Set if the next look cannot wait: the alias has moved, or the server ends.
        self._look_now = asyncio.Event()
        self._watch = ChampionWatch(name, uri, every)
        self._runtime = runtime
        self._corpora = CorpusReader(corpora, lambda: self.served)
        self._metrics, self._seconds = metrics, seconds
        self._id = secrets.token_hex(4)
        self._stopping = False
        self._checking: asyncio.Task[None] | None = None
        self._tries = 0
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def registry_error(self) -> str | None:
        """Why the registry gave no champion at the last look; None if it did."""
        return self._watch.error

    def answering(self) -> Served:
        """The model that answers now.

        Raises:
            Refusal: no model answers yet.
        """
        if self.served is None:
            raise Refusal(503, "no model is ready yet; GET /health says why")
        return self.served

    async def ask(self, job: Job, served: Served | None = None) -> tuple[Any, dict[str, Any]]:
        """Send a request to a model; returns its answer, and what every answer over HTTP says besides: the model that answers,
        and how it read the texts.

        Args:
            served: the model to ask; by default the one that answers now.

        Raises:
            Refusal: no model answers yet, or several replicas in a row died with the request.
        """
        model = served or self.answering()
        # No await between the choice and the count, so `_end` cannot miss this request.
        model.in_flight += 1
        try:
            value, cut, unknown = await model.batches.answer(job)
        finally:
            model.in_flight -= 1
        self._metrics.sentences.inc(len(job.first) + len(job.second))
        return value, {"model": model.model, "cut": cut, "unknown": unknown}

    async def follow(self) -> None:
        """Follow the alias until `stop`."""
        # Tasks of their own, because the start of another model takes long, and so does a corpus.
        others = [asyncio.create_task(work()) for work in (self._count_replicas, self._corpora.look)]
        while not self._stopping:
            try:
                await self._check_alias()
            except Exception as error:
                # Whatever it is, the model that answers goes on answering.
                log.error(f"serve: the champion cannot be followed: {type(error).__name__}: {first_line(error)}")
            pause = self._watch.pause
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), pause if self.served is not None else min(pause, POLL))
                self._look_now.clear()
        for task in others:
            task.cancel()

    async def _count_replicas(self) -> None:
        while True:
            if (served := self.served) is not None:
                try:
                    running = await asyncio.to_thread(self._runtime.running, served.app)
                except Exception as error:
                    log.warning(f"serve: the replicas cannot be counted: {type(error).__name__}: {last_line(error)}")
                else:
                    served.replicas, served.batches.replicas = running, max(1, running)
                    # Another model may have taken over during the count.
                    if served is self.served:
                        self._metrics.replicas.set(running)
            await asyncio.sleep(POLL)

    def stop(self) -> None:
        """End `follow` after its current step; a model that has not started yet is given up."""
        self._stopping = True
        if self._checking is not None:
            self._checking.cancel()
        self._look_now.set()

    async def close(self) -> None:
        """End all models that have answered; no request may be in progress. A corpus that is being read is not waited for."""
        self._corpora.close()
        if self.served is not None:
            await self._end(self.served)
            self.served = None
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _check_alias(self) -> None:
        version = await asyncio.to_thread(self._watch.look)
        if version is None:
            self._metrics.registry_errors.inc()
            return
        number = int(version.version)
        if self.served is not None and number == self.served.number:
            self._accept()
            if time.monotonic() - self.served.shared_at > _SHARE_AGAIN:
                self.served.shared_at = time.monotonic()
                await asyncio.to_thread(self.served.share)
        elif self._watch.due(number):
            try:
                await self._replace(version)
            except Exception as error:
                # A full disk or a fault of Ray as well: it is said in /health, and tried again less and less often.
                if not self._stopping:
                    self._refuse(number, error)

    async def _replace(self, version: ModelVersion) -> None:
        start = time.monotonic()
        log.info(f"serve: {self.name} version {version.version} is champion; starting it")
        new = await asyncio.to_thread(self._started, version)
        try:
            self._unless_stopping()
            self._checking = asyncio.create_task(self._check(new))
            try:
                await self._checking
            finally:
                # A task that failed keeps its error, the frames of that, and so the model that was refused.
                self._checking = None
            # All this takes long; the alias may have moved on or back meanwhile.
            moved_on = await self._moved_on(new.number)
        except BaseException as error:
            await self._end(new)
            if isinstance(error, asyncio.CancelledError):
                self._unless_stopping()
            raise
        if moved_on or self._stopping:
            if not self._stopping:
                log.info(f"serve: {new.model} has lost its alias meanwhile; it gets no request")
                # The next look is due now.
                self._look_now.set()
            await self._end(new)
            return
        new.batches.seconds = self._seconds
        new.since = time.time()
        old, self.served = self.served, new
        self._metrics.version.set(new.number)
        self._metrics.replicas.set(new.replicas)
        self._metrics.swaps.labels("swapped").inc()
        self._accept()
        log.info(f"serve: {new.model} answers, {time.monotonic() - start:.1f} s after its alias was seen")
        if self._corpora.folders and new.corpus is None:
            log.warning(f"serve: {new.model} does not search: {new.no_corpus}")
        if old is not None:
            # In the background: its last requests may take long, and the alias may move again meanwhile.
            task = asyncio.create_task(self._end(old))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _moved_on(self, number: int) -> bool:
        try:
            return int((await asyncio.to_thread(self._watch.now)).version) != number
        except UserError as error:
            # If the registry does not answer, this is the last that is known.
            return isinstance(error, NoSuchVersion)

    def _started(self, version: ModelVersion) -> Served:
        self._tries += 1
        # On a standing cluster another server may have the same version.
        number, app = int(version.version), f"{self.name}_{self._id}-{version.version}-{self._tries}"
        with ExitStack() as stack:
            folder = stack.enter_context(fetched(version, self._watch.uri)) / ENCODER
            config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            able, kind, relation = capabilities_of(config), score_kind_of(config), read_relation(folder)
            digest, calibration, note = embeddings_digest(folder, self._runtime.engine), read_calibration(folder), note_of(folder)

            # Nothing may fail once it is deployed, because nobody would end it.
            if (canaries := read_canaries(folder)) is None:
                raise UserError(f"it has no canary pairs ({CANARIES}); register it again")
            self._unless_stopping()
            on, share = self._runtime, partial(self._runtime.share, folder)
            shared = share()
            self._unless_stopping()
            send = on.start(app, shared, lambda: self._stopping)
            return Served(
                number=number,
                model=f"{self.name}/{number}",
                app=app,
                # Its canary pairs have the time of a start: the first call of a model may take longer than a request may.
                batches=Batches(send, self._metrics.resent.inc, on.patience, on.least),
                kind=kind,
                directed="direction" in able,
                has_relation=relation is not None,
                note=note,
                calibration=calibration,
                operations=encoder_class(config).operations,
                writes="decoder" in able,
                find_corpus=lambda: searchable(self._corpora.of_version(number), digest, kind, relation),
                canaries=canaries,
                files=stack.pop_all(),
                share=share,
                replicas=on.least,
            )

    def _unless_stopping(self) -> None:
        if self._stopping:
            raise UserError("the server ends")

    async def _check(self, new: Served) -> None:
        """Ask a started model its canary pairs, where no user sees the answers; then begin to read its corpus.

        Raises:
            CanaryError: an answer is not the recorded one.
            UserError: the replicas do not answer.
        """
        canaries, patience = new.canaries, self._runtime.patience
        premises, hypotheses = list(canaries.premises), list(canaries.hypotheses)
        relation = None
        try:
            async with asyncio.timeout(patience):
                similarity, _ = await self.ask(Job("similarity", hypotheses, premises), new)
                if canaries.relation is not None:
                    relation, _ = await self.ask(Job("relation", premises, hypotheses), new)
        except TimeoutError:
            raise UserError(f"it did not answer its canary pairs within {patience:g} s") from None
        except Exception as error:
            raise UserError(f"it did not answer its canary pairs: {last_line(error)}") from None
        canaries.check(similarity, relation, self._runtime.engine)
        # Only now, because a corpus takes long to read and much memory, and a model that fails its check needs none.
        await self._corpora.begin(new)

    def _accept(self) -> None:
        """The champion answers, so none is refused."""
        self.refused = None
        self._watch.succeeded()
        self._metrics.refused.set(0)

    def _refuse(self, number: int, error: Exception) -> None:
        final = isinstance(error, CanaryError)
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {last_line(error)}"
        pause = self._watch.failed(number, for_good=final)
        self.refused = Refused(number, reason, time.time(), final)
        self._metrics.refused.set(number)
        self._metrics.swaps.labels("refused").inc()
        again = "" if final else f"; tried again in {pause:.0f} s"
        answering = self.served.model if self.served is not None else "no model"
        log.error(f"serve: {self.name} version {number} is champion and stays out: {reason}{again}; {answering} answers")

    async def _end(self, old: Served) -> None:
        """End a model once its requests are answered, which takes at most the time limit of a request."""
        old.ended = True
        deadline = time.monotonic() + self._seconds + 1
        while old.in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        try:
            await asyncio.to_thread(self._discard, old)
        except Exception as error:
            log.error(f"serve: {old.model} could not be ended: {type(error).__name__}: {last_line(error)}")
        else:
            log.debug(f"serve: {old.model} has ended")

    def _discard(self, served: Served) -> None:
        try:
            self._runtime.end(served.app)
        finally:
            served.files.close()
