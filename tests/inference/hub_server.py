"""A server on loopback with the part of the Hugging Face hub's API that uploads and downloads a model."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

TOKEN = "hf_a_token_that_may_write"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: the files of each commit, and what tags point to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, Any]] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.tags: dict[str, str] = {}
        self.messages: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.failing: dict[str, list[int]] = {}
        """Path → the statuses of the next answers to it."""
        self.before: dict[str, Callable[[], None]] = {}
        """Path → what somebody else does just before the next request to it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repo: str, revision: str) -> str:
        return self.repos[repo]["head"] if revision == "main" else self.tags.get(revision, revision)

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.commit(repo, revision)]


class _Handler(BaseHTTPRequestHandler):
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        method = self.command
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        hub, path = self.server, unquote(urlparse(self.path).path)
        hub.asked.append(f"{method} {path}")
        if statuses := hub.failing.get(path):
            return self._answer({"error": "not now"}, statuses.pop(0))
        hub.before.pop(path, lambda: None)()
        if method != "PUT" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid username or password."}, 401)
        return self._answer(*self._result(method, path, body))

    do_HEAD = do_POST = do_PUT = do_GET

    def _result(self, method: str, path: str, body: bytes) -> tuple[Any, int]:
        hub = self.server
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.repos:
                return {"error": "You already created this model repo", "url": f"{hub.url}/{name}"}, 409
            if asked["organization"] != "team":
                return {"error": "You don't have the rights to create a model under this namespace"}, 403
            hub.repos[name] = {"head": "0" * 40, "private": asked.get("private") or asked.get("visibility") == "private"}
            hub.commits["0" * 40] = {".gitattributes": b"*.safetensors filter=lfs\n"}
            return {"url": f"{hub.url}/{name}", "name": name, "id": name}, 200
        if path == "/api/validate-yaml":
            text = json.loads(body)["content"]
            errors = [] if text.startswith("---\n") else [{"message": "the card has no metadata"}]
            return {"errors": errors, "warnings": []}, 400 if errors else 200
        if path.startswith("/blobs/"):
            hub.blobs[path.removeprefix("/blobs/")] = body
            return {}, 200
        if path.endswith(".git/info/lfs/objects/batch"):
            return {"transfer": "basic", "objects": [self._upload(each) for each in json.loads(body)["objects"]]}, 200
        repo, action, rest = _split(path)
        if repo not in hub.repos:
            return {"error": "Repository not found"}, 404
        if action == "preupload":
            return {"files": [_mode(each, hub.files(repo)) for each in json.loads(body)["files"]]}, 200
        if action == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            if lines[0]["value"].get("parentCommit", hub.repos[repo]["head"]) != hub.repos[repo]["head"]:
                return {"error": "A commit has happened since. Please refresh and try again."}, 412
            return self._commit(repo, lines), 200
        if action == "tag" and json.loads(body)["tag"] in hub.tags:
            return {"error": "Reference exists already"}, 409
        if action == "tag":
            hub.tags[json.loads(body)["tag"]] = rest
            return {}, 200
        if action == "refs":
            tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit} for tag, commit in hub.tags.items()]
            return {"branches": [], "converts": [], "tags": tags}, 200
        if action == "tree":
            return [
                {"type": "file", "path": name, "size": len(content), "oid": "x"} for name, content in hub.files(repo).items()
            ], 200
        if action in ("", "revision"):
            revision = rest or "main"
            commit = hub.commit(repo, revision)
            return {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in hub.files(repo, commit)]}, 200
        assert action == "resolve", path
        revision, _, name = rest.partition("/")
        return hub.files(repo, revision)[name], 200

    def _upload(self, each: dict[str, Any]) -> dict[str, Any]:
        known = each["oid"] in self.server.blobs
        upload = {"upload": {"href": f"{self.server.url}/blobs/{each['oid']}"}}
        return each if known else {**each, "actions": upload}

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        hub = self.server
        files = dict(hub.files(repo))
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                hub.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = hub.blobs[value["oid"]]
                assert (hashlib.sha256(content).hexdigest(), len(content)) == (value["oid"], value["size"])
                files[value["path"]] = content
            else:
                del files[value["path"]]
        commit = hashlib.sha1(json.dumps(lines).encode()).hexdigest()
        hub.commits[commit] = files
        hub.repos[repo]["head"] = commit
        return {"success": True, "commitOid": commit, "commitUrl": f"{hub.url}/{repo}/commit/{commit}"}

    def _answer(self, value: Any, status: int) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        if isinstance(value, bytes):
            repo, _, rest = _split(unquote(urlparse(self.path).path))
            self.send_header("X-Repo-Commit", self.server.commit(repo, rest.partition("/")[0]))
        if isinstance(value, dict) and "error" in value:
            self.send_header("X-Error-Message", value["error"])
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _split(path: str) -> tuple[str, str, str]:
    """Repository, action and the rest of a path, with or without /api/models."""
    parts = path.removeprefix("/api/models").strip("/").split("/")
    return "/".join(parts[:2]), parts[2] if len(parts) > 2 else "", "/".join(parts[3:])


def _mode(each: dict[str, Any], present: dict[str, bytes]) -> dict[str, Any]:
    name = each["path"]
    content = present.get(name)
    # As git names a blob; files of LFS have the SHA-256 sum.
    large = name.endswith(".safetensors")
    oid = None
    if content is not None:
        oid = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
    return {
        "path": name,
        "uploadMode": "lfs" if large else "regular",
        "shouldIgnore": False,
        "oid": oid and oid.hexdigest(),
    }


@contextmanager
def hub() -> Iterator[Hub]:
    """A running server."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
