"""FakeHub: a server on the loopback interface that answers as the Hugging Face Hub does.

    with FakeHub() as hub:
        hub.add("org/repo", {"model.safetensors": content})
        monkeypatch.setenv("HF_ENDPOINT", hub.url())

It has what readers of models use: /resolve, which redirects to a CDN on another port for files that
are stored as LFS; /api/.../tree, in pages; and /api/.../revision. The status codes and X-Error-Code
are those that huggingface_hub tells apart.
"""

import hashlib
import json
import time
import urllib.parse
from dataclasses import dataclass, field

from support.servers import Answer, RangeServer

PAGE = 1000
LFS = (".safetensors", ".bin", ".gguf")


def commit_of(revision):
    """Returns the commit of a revision."""
    return hashlib.sha1(revision.encode()).hexdigest()


@dataclass
class Repository:
    """One repository: its files by revision and path."""

    files: dict
    gated: bool = False
    private: bool = False
    disabled: bool = False
    renamed_to: str = ""
    readers: set = field(default_factory=set)  # tokens that may read it


class FakeHub(RangeServer):
    """The Hub. `page`: the entries of a page of a listing; `has_api`: False for plain mirrors."""

    def __init__(self, *, page=PAGE, has_api=True, delay=0.0, quota=None):
        super().__init__({})
        self._trips = []
        self.delay = delay  # of each answer
        self.quota = quota  # how many requests in how many seconds
        self._window, self._asked = 0.0, 0
        self.repositories = {}
        self.tokens = {"hf_good", "hf_reader"}
        self.page = page
        self.has_api = has_api
        self.limits = []  # answers of status 429 that come first
        self.cdn = RangeServer({})

    def __enter__(self):
        self.cdn.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.cdn.__exit__(*error)

    def add(self, name, files, *, revisions=("main",), **options):
        """Adds a repository that has the same files at all these revisions."""
        repository = self.repositories.setdefault(name, Repository({}, **options))
        repository.files |= {revision: dict(files) for revision in revisions}
        return repository

    def paths(self):
        """Returns what was asked for, as the requests spell it, without queries."""
        return [request.path for request in self.log]

    def trips(self):
        """Returns the requests in groups: each came after the answers to those before."""
        return self._trips

    def begin(self, request):
        """Logs a request."""
        with self.lock:
            if self._now == 0:
                self._trips.append([])
            self._trips[-1].append(request.path)
        super().begin(request)

    def respond(self, handler, request):
        """Answers a request."""
        time.sleep(self.delay)
        if self._is_too_much():
            return handler.answer(*rate_limit(self.quota[1]))
        raw = handler.path.partition("?")[0]
        if self.limits:
            return handler.answer(*self.limits.pop(0))
        answer = self._answer(raw, request)
        if isinstance(answer, Answer):
            return handler.answer(*answer)
        commit, content = answer
        return handler.serve(request, content, X_Repo_Commit=commit)

    def _is_too_much(self):
        if self.quota is None:
            return False
        most, seconds = self.quota
        with self.lock:
            if time.monotonic() >= self._window:
                self._window, self._asked = time.monotonic() + seconds, 0
            self._asked += 1
            return self._asked > most

    def _answer(self, raw, request):
        parts = [urllib.parse.unquote(part) for part in raw.strip("/").split("/")]
        is_api = parts[0] == "api"
        parts = parts[1:] if is_api else parts
        kind = parts.pop(0) + "/" if parts[0] in ("datasets", "spaces", "models") else ""
        kind = "" if kind == "models/" else kind
        name, rest = kind + "/".join(parts[:2]), parts[2:]
        if is_api and not self.has_api:
            return Answer(404, {}, b"<html>")
        if is_api and rest[:1] not in (["tree"], ["revision"]):
            return Answer(404, {}, b"<html>")
        repository = self.repositories.get(name)
        if repository is not None and repository.renamed_to:
            return Answer(307, {"Location": raw.replace(name, repository.renamed_to, 1)})
        refused = self._refusal(name, repository, request.headers.get("Authorization"), is_api)
        if refused is not None:
            return refused
        revision, path = rest[1], "/".join(rest[2:])
        commits = {commit_of(each): each for each in repository.files}
        if revision not in repository.files:
            revision = commits.get(revision, revision)
        if revision not in repository.files:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files, commit = repository.files[revision], commit_of(revision)
        if is_api:
            return self._listed(raw, rest[0], name, files, commit, path, request)
        if path not in files:
            error = _error(404, "EntryNotFound", "Entry not found")
            return error._replace(headers={**error.headers, "X-Repo-Commit": commit})
        if not path.endswith(LFS):
            return commit, files[path]
        sha = hashlib.sha256(files[path]).hexdigest()
        self.cdn.files[f"/{sha}"] = files[path]
        headers = {"Location": f"{self.cdn.url('/' + sha)}?Signature=x", "X-Repo-Commit": commit}
        headers |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(files[path]))}
        return Answer(302, headers)

    def _refusal(self, name, repository, authorization, is_api):
        token = (authorization or "").removeprefix("Bearer ")
        if token and token not in self.tokens:
            return _error(401, None, "Invalid credentials in Authorization header")
        may_read = repository is not None and token in repository.readers
        if repository is None or (repository.private and not may_read):
            return _error(404 if token else 401, "RepoNotFound", "Repository not found")
        if repository.disabled:
            return _error(403, None, "Access to this resource is disabled.")
        if repository.gated and not may_read and not is_api:
            text = f"Access to model {name} is restricted"
            if not token:
                return _error(401, "GatedRepo", f"{text}. You must be authenticated to access it.")
            text += " and you are not in the authorized list. Visit it to ask for access."
            return _error(403, "GatedRepo", text)
        return None

    def _listed(self, raw, what, name, files, commit, path, request):
        if what == "revision":
            body = {"id": name, "sha": commit, "siblings": [{"rfilename": each} for each in files]}
            return _json(body)
        query = dict(urllib.parse.parse_qsl(request.query))
        prefix = path + "/" if path else ""
        entries = {}
        for each, content in files.items():
            if not each.startswith(prefix):
                continue
            below, in_folder, _ = each.removeprefix(prefix).partition("/")
            if in_folder and query.get("recursive") != "true":
                entries[below] = {"type": "directory", "oid": "0" * 40, "size": 0}
            else:
                below = each.removeprefix(prefix)
                entries[below] = {"type": "file", "oid": "0" * 40, "size": len(content)}
        if path and not entries:
            return _error(404, "EntryNotFound", f"{path} does not exist on revision")
        listed = [{**entry, "path": prefix + each} for each, entry in sorted(entries.items())]
        begin = int(query.get("cursor", 0))
        end = begin + self.page
        headers = {}
        if end < len(listed):
            query["cursor"] = str(end)
            following = f"{self.url()}{raw}?{urllib.parse.urlencode(query)}"
            headers["Link"] = f'<{following}>; rel="next"'
        return _json(listed[begin:end], headers)


def rate_limit(seconds, *, left=0):
    """Returns the answer of the Hub to one request too many."""
    headers = {"RateLimit": f'"resolvers";r={left};t={seconds}'}
    headers["RateLimit-Policy"] = '"fixed window";"resolvers";q=5000;w=300'
    return Answer(429, headers, b"rate limited")


def _json(value, headers=()):
    return Answer(
        200, {"Content-Type": "application/json", **dict(headers)}, json.dumps(value).encode()
    )


def _error(status, code, message):
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return Answer(status, headers, json.dumps({"error": message}).encode())
