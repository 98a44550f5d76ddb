"""A schema registry as Confluent's, Apicurio's and Karapace's speak it over HTTP: schemas by id and by subject.

What an id means never changes, so it is asked for once per process. Messages name the registry and what to do.
"""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import cache
from typing import Any, NamedTuple

from headrace.spark.plain_errors import UserError

TIMEOUT_S = 10.0
TRIES = 3
PAUSE_S = 0.2
SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40403
TYPES = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryError(UserError, RuntimeError):
    """The registry cannot be reached, refuses, or does not have what was asked for."""


class NoSubject(RegistryError):
    """The registry has nothing under this subject."""


class NoSchema(RegistryError):
    """The registry knows no schema of this id."""


class Schema(NamedTuple):
    """One version of a schema. `references` are (the name it is imported by, its text), those it needs first."""

    schema_id: int
    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class Registry:
    """`Registry("http://user:password@host:8081")`. Equal ones share what they have learnt; picklable."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryError(f"{url!r} is not a registry's URL: write http://host:8081")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if parts.port is None else f"{host}:{parts.port}"
        self.url = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
        self._authorization = None
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._authorization = "Basic " + base64.b64encode(pair.encode()).decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registry) and (self.url, self._authorization) == (other.url, other._authorization)

    def __hash__(self) -> int:
        return hash((self.url, self._authorization))

    def __repr__(self) -> str:
        return f"Registry({self.url!r})"

    def by_id(self, schema_id: int) -> Schema:
        """Raises NoSchema."""
        return _by_id(self, schema_id)

    def latest(self, subject: str) -> Schema:
        """The newest version under a subject. Raises NoSubject."""
        found = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/latest")
        return self._schema(int(found["id"]), found)

    def register(self, subject: str, text: str, kind: str) -> int:
        """The id of a schema under a subject, made a new version of it where it is none yet."""
        body: dict[str, Any] = {"schema": text}
        if TYPES[kind] != "AVRO":
            body["schemaType"] = TYPES[kind]
        return int(self._ask("POST", f"/subjects/{_quoted(subject)}/versions", body)["id"])

    def _schema(self, schema_id: int, found: dict[str, Any]) -> Schema:
        references: dict[str, str] = {}
        self._collect(found.get("references") or (), references)
        return Schema(schema_id, found.get("schemaType") or "AVRO", found["schema"], tuple(references.items()))

    def _collect(self, references: Any, into: dict[str, str]) -> None:
        """Texts of all that a schema refers to, deepest first."""
        for reference in references:
            name, subject, version = reference["name"], reference["subject"], reference["version"]
            if name in into:
                continue
            found = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}")
            self._collect(found.get("references") or (), into)
            into[name] = found["schema"]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request. What may pass is tried again; both requests may be sent twice without harm."""
        failure = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * attempt)
            try:
                return self._ask_once(method, path, body)
            except urllib.error.HTTPError as error:
                answer = _answer(error)
                if error.code >= 500:
                    failure = f"it answered {error.code} ({answer[1]})"
                    continue
                self._refuse(error.code, *answer, path)
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                failure = f"{reason}"
        raise RegistryError(f"the schema registry at {self.url} cannot be asked for {path}: {failure}")

    def _ask_once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def _refuse(self, status: int, code: int, message: str, path: str) -> None:
        if status in (401, 403):
            raise RegistryError(
                f"the schema registry at {self.url} does not let us in ({message}): write"
                " http://user:password@host:port"
            )
        if code == SUBJECT_NOT_FOUND or (status == 404 and path.startswith("/subjects/")):
            subject = urllib.parse.unquote(path.split("/")[2])
            raise NoSubject(
                f"the schema registry at {self.url} has no subject '{subject}': register its schema, or set"
                " valueSchemaSubject"
            )
        kind = NoSchema if code == SCHEMA_NOT_FOUND else RegistryError
        raise kind(f"the schema registry at {self.url} refuses {path}: {message} ({code})")


@cache
def _by_id(registry: Registry, schema_id: int) -> Schema:
    return registry._schema(schema_id, registry._ask("GET", f"/schemas/ids/{schema_id}"))


def _answer(error: urllib.error.HTTPError) -> tuple[int, str]:
    """The registry's own code and words, or HTTP's."""
    try:
        body = json.loads(error.read())
        return int(body["error_code"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        return error.code, error.reason


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")
