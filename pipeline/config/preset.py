"""Presets: `gausscse preset NAME ...` writes the keys of presets/NAME.yaml into params.yaml, so that DVC sees the change.

Comments stay, and so do keys that the preset does not mention. Only section objective is replaced as a whole where the preset's
objective lacks some of its keys.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from pipeline.config.load import parse_params, parse_yaml, read_yaml_text
from pipeline.config.objectives import objective_keys
from pipeline.config.params import PARAMS_FILE, Params
from pipeline.utils.atomic_io import write_text
from pipeline.utils.errors import UserError

# Names below _OWN_NAMES are chosen by the user (test sets, variants). Such a mapping is replaced as a whole.
_DATA = "${GAUSSCSE_DATA}"
_OWN_NAMES = ("data.files.", "data.hub.", "evaluate.", "experiments.")


def apply_presets(chosen: Sequence[str], params: Path = Path(PARAMS_FILE), folder: Path = Path("presets")) -> list[str]:
    """Write the values of presets, one after another, into the parameter file atomically.

    Returns:
        one line per changed key, "section.key: old → new".

    Raises:
        UserError: a preset does not exist, one of the files is not accepted as YAML, or the result is not valid.
    """
    changes, text, _ = composed(chosen, params, folder)
    if changes:
        write_text(params, text)
    return changes


def composed(
    chosen: Sequence[str], params: Path = Path(PARAMS_FILE), folder: Path = Path("presets")
) -> tuple[list[str], str, Params]:
    """What `apply_presets` changes, the text that it writes, and the parameters in that; errors as there."""
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if unknown := [name for name in chosen if name not in names]:
        raise UserError(f"no preset {unknown[0]!r} in {folder}/; there are {', '.join(names) or 'none'}")
    before = read_yaml_text(params)
    # A round trip has messages of many lines, and accepts what `parse_yaml` refuses.
    parse_yaml(before, str(params))
    round_trip = YAML()
    round_trip.preserve_quotes = True
    round_trip.width = 130
    round_trip.indent(mapping=2, sequence=4, offset=2)
    # By default ruamel writes null as an empty value.
    round_trip.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    target = round_trip.load(before)
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for file in (folder / f"{name}.yaml" for name in chosen):
        values = read_yaml_text(file)
        if _DATA in values:
            if not (place := os.environ.get("GAUSSCSE_DATA")):
                raise UserError(f"{file}: set the environment variable GAUSSCSE_DATA to the folder that has its files")
            values = values.replace(_DATA, place)
        parse_yaml(values, str(file))
        for parent, key, value, path in _leaves(round_trip.load(values), target):
            if parent.get(key) != value:
                first.setdefault(path, parent.get(key))
                last[path] = value
                _replace(parent, key, value)
    changes = [f"{path}: {_short(first[path])} → {_short(value)}" for path, value in last.items() if first[path] != value]
    out = io.StringIO()
    round_trip.dump(target, out)
    return changes, out.getvalue(), parse_params(out.getvalue(), f"{params} with preset {' and '.join(chosen)}")


def _leaves(preset: dict[str, Any], target: dict[str, Any], path: str = "") -> Iterator[tuple[dict[str, Any], str, Any, str]]:
    """(parent in the target, key, new value, dotted path) of each key; recurses into keys that are mappings on both sides."""
    for key, value in preset.items():
        key_path = f"{path}{key}"
        if key_path == "objective" and set(target[key]) - objective_keys(value.get("name")):
            # Another kind of objective, with other keys.
            yield target, key, value, key_path
        elif isinstance(value, dict) and isinstance(target.get(key), dict) and path not in _OWN_NAMES:
            yield from _leaves(value, target[key], f"{key_path}.")
        else:
            yield target, key, value, key_path


def _replace(parent: dict[str, Any], key: str, value: Any) -> None:
    """Set a key. ruamel stores the comment lines before the next key with the last line of the old value, so move them."""
    tokens, last, after = _comments_of(parent, key)
    token = (tokens.get(last) or [None] * 4)[after]
    parent[key] = value
    if token is not None:
        # The comment on the old value's own line goes with that value.
        token.value = "\n" + token.value.partition("\n")[2]
        tokens, last, after = _comments_of(parent, key)
        tokens.setdefault(last, [None] * 4)[after] = token


def _comments_of(holder: Any, key: Any) -> tuple[dict[Any, Any], Any, int]:
    """ruamel's comment tokens of the mapping or list that has the last line of `holder[key]`, its key or index there, and the
    position of the comment after an item."""
    value = holder.get(key) if isinstance(holder, dict) else holder[key]
    if isinstance(value, (CommentedMap, CommentedSeq)) and value and not value.fa.flow_style():
        return _comments_of(value, list(value)[-1] if isinstance(value, CommentedMap) else len(value) - 1)
    return holder.ca.items, key, 2 if isinstance(holder, CommentedMap) else 0


def _short(value: Any) -> str:
    text = str(dict(value) if isinstance(value, CommentedMap) else value)
    return text if len(text) <= 60 else text[:57] + "..."
