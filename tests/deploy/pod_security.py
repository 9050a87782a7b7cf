"""The restricted level of the Kubernetes pod security standard (v1.34) as a check of a pod; where that is shorter, stricter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
# The only security contexts that are accepted. A pod's may also say which user and groups it has.
_OF_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_OF_CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_USER = {"runAsUser", "runAsGroup", "fsGroup"}
_HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def faults(pod: Mapping[str, Any]) -> Iterator[str]:
    """Faults of a pod, or of the template of one: what the restricted level forbids or misses; a line each."""
    spec = pod["spec"]
    yield from (f"pod: {name}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    yield from (f"volume {volume['name']}" for volume in spec.get("volumes", []) if set(volume) - {"name"} - _VOLUMES)
    context = spec.get("securityContext", {})
    if context.get("runAsUser") == 0 or {key: value for key, value in context.items() if key not in _USER} != _OF_POD:
        yield f"pod: {context}"
    if any("apparmor" in key for key in pod.get("metadata", {}).get("annotations", {})):
        yield "pod: AppArmor"
    for one in (one for kind in ("containers", "initContainers", "ephemeralContainers") for one in spec.get(kind, [])):
        context = {key: value for key, value in one.get("securityContext", {}).items() if key != "readOnlyRootFilesystem"}
        if context != _OF_CONTAINER:
            yield f"{one['name']}: {context}"
        if any(port.get("hostPort") for port in one.get("ports", [])):
            yield f"{one['name']}: hostPort"
        if '"host":' in json.dumps([one.get(name) for name in _HANDLERS]):
            yield f"{one['name']}: a probe or hook of another host"
