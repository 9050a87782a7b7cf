"""The cluster on AWS, as far as it goes without an account: what `ray up` checks before it asks AWS for anything."""

from __future__ import annotations

import copy
import re
import shlex
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import cli, start

from tests.conftest import ROOT

CLUSTER = yaml.safe_load((ROOT / "deploy/aws.yaml").read_text(encoding="utf-8"))


def checked(config: dict[str, Any]) -> dict[str, Any]:
    whole = prepare_config(copy.deepcopy(config))
    validate_config(whole)
    return whole


def test_the_launcher_takes_it_and_workers_are_spot_instances() -> None:
    types = checked(CLUSTER)["available_node_types"]
    assert types["workers"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in types["head"]["node_config"]
    assert (types["head"]["max_workers"], types["workers"]["max_workers"]) == (0, CLUSTER["max_workers"])
    # By default, the launcher would install Ray's nightly build.
    assert not [name for name, commands in checked(CLUSTER).items() if name.endswith("setup_commands") and commands]
    # It would notice a mistake.
    with pytest.raises(ValidationError):
        checked(CLUSTER | {"idle_minutes": 10})


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_ray_start_takes_its_options_and_finds_its_token(kind: str) -> None:
    *_, command = CLUSTER[f"{kind}_start_ray_commands"]
    words = shlex.split(command)
    options = words[words.index("start") + 1 :]
    assert start.make_context("start", options).params["head"] == (kind == "head")
    # The job API and its token stay on the machine; `ray dashboard` makes a tunnel.
    assert "--dashboard-host=0.0.0.0" not in options
    ((there, here),) = CLUSTER["file_mounts"].items()
    assert here in str(cli.commands["get-auth-token"].help)
    home = re.search(r"WORKDIR (/home/\S+)", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"))
    assert home is not None
    assert there == here.replace("~", home[1])
