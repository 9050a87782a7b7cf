"""The restricted level of the Kubernetes pod security standard (v1.34), the baseline level included, as a check of a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies"),
    *("net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
    *("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
_PROFILES = {"RuntimeDefault", "Localhost"}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def faults(pod: Mapping[str, Any]) -> list[str]:
    """What a pod, or the template of one, has that the restricted level forbids, or lacks that it wants; a line each."""
    return [*_of_pod(pod), *(fault for kind, one in _containers(pod["spec"]) for fault in _of_container(kind, one, pod["spec"]))]


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for one in spec.get(kind, []):
            yield f"{kind}/{one['name']}", one


def _of_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    spec = pod["spec"]
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"pod: {name}"
    for volume in spec.get("volumes", []):
        if kinds := set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']}: {sorted(kinds)}"
    for sysctl in spec.get("securityContext", {}).get("sysctls", []):
        if sysctl["name"] not in _SYSCTLS:
            yield f"pod: sysctl {sysctl['name']}"
    for key, value in pod.get("metadata", {}).get("annotations", {}).items():
        if key.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"pod: {key}: {value}"
    yield from _of_either("pod", spec.get("securityContext", {}))


def _of_either(where: str, context: Mapping[str, Any]) -> Iterator[str]:
    """What a pod's security context may have as little as a container's."""
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield f"{where}: hostProcess"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{where}: seLinuxOptions {selinux}"
    if context.get("appArmorProfile", {"type": "RuntimeDefault"})["type"] not in _PROFILES:
        yield f"{where}: appArmorProfile"
    if context.get("seccompProfile", {"type": "RuntimeDefault"})["type"] not in _PROFILES:
        yield f"{where}: seccompProfile"
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield f"{where}: runAsNonRoot false"


def _of_container(where: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    context, of_pod = container.get("securityContext", {}), spec.get("securityContext", {})
    yield from _of_either(where, context)
    if context.get("privileged"):
        yield f"{where}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}: allowPrivilegeEscalation is not false"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"{where}: capabilities are not dropped"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{where}: capabilities are added"
    if context.get("procMount", "Default") != "Default":
        yield f"{where}: procMount"
    if "seccompProfile" not in {**of_pod, **context}:
        yield f"{where}: no seccompProfile"
    if not {**of_pod, **context}.get("runAsNonRoot"):
        yield f"{where}: runAsNonRoot is not true"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{where}: hostPort"
    lifecycle = container.get("lifecycle", {})
    handlers = [container.get(name, {}) for name in ("livenessProbe", "readinessProbe", "startupProbe")]
    handlers += [lifecycle.get(name, {}) for name in ("postStart", "preStop")]
    if any(handler.get(way, {}).get("host") for handler in handlers for way in ("httpGet", "tcpSocket")):
        yield f"{where}: a probe or hook of another host"
