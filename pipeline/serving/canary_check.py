"""Asks a started model its canary pairs, where no user sees the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from ray.exceptions import RayTaskError

from pipeline.models.canaries import Canaries
from pipeline.serving.limits import Refusal
from pipeline.serving.replica import Job
from pipeline.utils.errors import UserError, last_line

# Sentences for a model without canary pairs.
_PROBE_SENTENCES = ("A dog runs across a field.", "An animal is moving.")


class CanaryError(UserError):
    """The canary pairs do not get their recorded scores, so trying again is useless."""


async def check_canaries(ask: Callable[[Job], Awaitable[tuple[Any, Any]]], canaries: Canaries | None, patience: float) -> str:
    """Check the answers of a model to its canary pairs; returns what was checked, in words.

    Args:
        ask: sends a request to the model; its answer comes second.
        patience: seconds for all answers.

    Raises:
        CanaryError: an answer is not the recorded one.
        UserError: there is no answer.
    """
    try:
        async with asyncio.timeout(patience):
            if canaries is None:
                _, (mean, log_var) = await ask(Job("encode", [*_PROBE_SENTENCES]))
                if not (np.isfinite(mean).all() and np.isfinite(log_var).all()):
                    raise CanaryError("it gives numbers that are not finite")
                return "it has no canary pairs, so only that its numbers are finite was checked"
            premises, hypotheses = list(canaries.premises), list(canaries.hypotheses)
            _, similarity = await ask(Job("similarity", hypotheses, premises))
            relation = None
            if canaries.relation is not None:
                _, relation = await ask(Job("relation", premises, hypotheses))
    except TimeoutError:
        raise UserError(f"it did not answer its canary pairs within {patience:g} s") from None
    except (Refusal, RayTaskError) as error:
        raise UserError(f"it did not answer its canary pairs: {last_line(error)}") from None
    try:
        canaries.check(similarity, relation)
    except UserError as error:
        raise CanaryError(str(error)) from None
    return f"its {len(premises)} canary pairs have their recorded scores"
