"""A schema registry over HTTP, as Confluent's, Apicurio's and Karapace's speak it: schemas by id and by subject.

What an id means never changes, so it is asked for once per process. Questions are rare: each has a connection of its
own, so that nothing has to be closed and nothing belongs to a thread or a loop.
"""

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Any

from headrace.client.registry.errors import NoSchema, NoSubject, RegistryError, RegistryUnreachable
from headrace.client.registry.types import AVRO, Reference, RegisteredSchema, Schema

TIMEOUT_S = 10.0
TRIES = 3
PAUSE_S = 0.2
SCHEMAS_MAX = 10_000
"""Schemas remembered in one process, by registry and id."""
ANSWER_BYTES_MAX = 16 << 20
REFERENCES_MAX = 1_000
SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
NO_LEVEL_OF_ITS_OWN = 40408
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")


class BlockingRegistry:
    """`BlockingRegistry("https://user:password@host:8081")`. Equal ones share what they have learnt; picklable.

    `ca` is a file of certificates to trust instead of the system's; `certificate` and `key` (PEM files) are shown to a
    registry that asks for them. Every method raises RegistryError.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = _checked_url(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        place = host if parts.port is None else f"{host}:{parts.port}"
        self.url = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
        self.timeout_s = timeout_s
        if user is None and parts.username is not None:
            user = urllib.parse.unquote(parts.username)
            password = urllib.parse.unquote(parts.password or "")
        self._authorization = None
        if user is not None:
            self._authorization = "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        self._tls = (ca, certificate, key)
        if any(self._tls):
            if parts.scheme != "https":
                raise RegistryError(f"{self.url} is not secured, but ca, certificate or key are given: write https://")
            _context(*self._tls)  # a file that cannot be read is told now

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.url, self._authorization, self._tls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingRegistry) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # -- schemas

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id, with all that it refers to. Raises NoSchema."""
        return _by_id(self, schema_id)

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version under a subject. Raises NoSubject."""
        return self.version(subject, "latest")

    def version(self, subject: str, version: int | str) -> RegisteredSchema:
        """A version of a subject. Raises NoSubject."""
        return self._registered(self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}"))

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema under a subject, made a new version of it where it is none yet."""
        return int(self._ask("POST", f"/subjects/{_quoted(subject)}/versions", _body(schema))["id"])

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """What is registered of this very schema under a subject. Raises NoSubject or NoSchema."""
        return self._registered(self._ask("POST", f"/subjects/{_quoted(subject)}", _body(schema)))

    def parts(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        """(name, text) of all that a schema refers to, those that others need first. Raises NoSubject."""
        parts: dict[str, str] = {}
        self._collect(schema.references, parts, set())
        return tuple(parts.items())

    def subjects(self) -> list[str]:
        """The names of all subjects."""
        return [str(name) for name in self._ask("GET", "/subjects")]

    def versions(self, subject: str) -> list[int]:
        """Raises NoSubject."""
        return [int(number) for number in self._ask("GET", f"/subjects/{_quoted(subject)}/versions")]

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject and return its versions; `permanent` is for one that was deleted before."""
        query = "?permanent=true" if permanent else ""
        return [int(number) for number in self._ask("DELETE", f"/subjects/{_quoted(subject)}{query}")]

    # -- compatibility

    def is_compatible(self, subject: str, schema: Schema, version: int | str = "latest") -> bool:
        """Whether a schema could be registered beside a version of the subject, by its compatibility."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/{version}"
        return bool(self._ask("POST", path, _body(schema))["is_compatible"])

    def compatibility(self, subject: str | None = None) -> str:
        """The level of a subject, or of all that have none of their own, such as BACKWARD."""
        if subject is not None:
            try:
                found = self._ask("GET", f"/config/{_quoted(subject)}?defaultToGlobal=true")
                return str(found["compatibilityLevel"])
            except NoSubject:
                pass  # registries that do not know defaultToGlobal
        return str(self._ask("GET", "/config")["compatibilityLevel"])

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the level of a subject, or of all that have none of their own."""
        if level not in LEVELS:
            raise RegistryError(f"there is no compatibility {level!r}: write one of {', '.join(LEVELS)}")
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        self._ask("PUT", path, {"compatibility": level})

    # -- inside

    def _registered(self, found: dict[str, Any], schema_id: int | None = None) -> RegisteredSchema:
        schema = Schema(found["schema"], found.get("schemaType") or AVRO, _references(found))
        number = int(found["id"]) if schema_id is None else schema_id
        return RegisteredSchema(number, schema, self.parts(schema), found.get("subject"), found.get("version"))

    def _collect(self, references: tuple[Reference, ...], into: dict[str, str], asked: set[Reference]) -> None:
        """Texts of all that a schema refers to, deepest first."""
        for reference in references:
            if reference in asked:
                continue
            asked.add(reference)
            if len(asked) > REFERENCES_MAX:
                raise RegistryError(f"a schema of {self.url} refers to more than {REFERENCES_MAX} others")
            found = self._ask("GET", f"/subjects/{_quoted(reference.subject)}/versions/{reference.version}")
            self._collect(_references(found), into, asked)
            into[reference.name] = found["schema"]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One request. What may pass is tried again; every one of them may be sent twice without harm."""
        failure = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * attempt)
            try:
                return self._ask_once(method, path, body)
            except urllib.error.HTTPError as error:
                code, message = _answer(error)
                if error.code < 500 and error.code != 429:
                    raise self._refused(error.code, code, message, path) from None
                failure = f"it answered {error.code} ({message})"
            except ssl.SSLError as error:
                raise self._not_trusted(error) from None
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                if isinstance(reason, ssl.SSLError):
                    raise self._not_trusted(reason) from None
                failure = f"{reason}"
        raise RegistryUnreachable(f"the schema registry at {self.url} cannot be asked for {path}: {failure}")

    def _ask_once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        handlers: list[Any] = [_NoRedirects()]
        if self.url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=_context(*self._tls)))
        with urllib.request.build_opener(*handlers).open(request, timeout=self.timeout_s) as answer:
            content = answer.read(ANSWER_BYTES_MAX + 1)
        if len(content) > ANSWER_BYTES_MAX:
            raise RegistryError(f"the answer of {self.url} to {path} has more than {ANSWER_BYTES_MAX >> 20} MiB")
        return json.loads(content)

    def _not_trusted(self, error: ssl.SSLError) -> RegistryError:
        words = getattr(error, "verify_message", None) or error.reason or error
        return RegistryError(
            f"the schema registry at {self.url} cannot be trusted, or does not trust us ({words}): give ca= the"
            " certificate of who signed its own, and certificate= and key= if it asks for yours"
        )

    def _refused(self, status: int, code: int, message: str, path: str) -> RegistryError:
        if status in (401, 403):
            return RegistryError(
                f"the schema registry at {self.url} does not let us in ({message}): write"
                " http://user:password@host:port"
            )
        if 300 <= status < 400:
            return RegistryError(f"the schema registry at {self.url} has moved ({status} {message}): write its new URL")
        name = urllib.parse.unquote(path.split("?")[0].split("/")[2]) if path.count("/") > 1 else ""
        if code == SCHEMA_NOT_FOUND:
            return NoSchema(f"the schema registry at {self.url} refuses {path}: {message} ({code})")
        if code in (SUBJECT_NOT_FOUND, NO_LEVEL_OF_ITS_OWN) or (status == 404 and path.startswith("/subjects/")):
            what = f"no such version of subject '{name}'" if code == VERSION_NOT_FOUND else f"no subject '{name}'"
            return NoSubject(
                f"the schema registry at {self.url} has {what}: register its schema first, or name another subject"
            )
        if status == 409:
            return RegistryError(
                f"the schema registry at {self.url} refuses the schema for {name!r}, which would break readers of"
                f" other versions: {message} ({code})"
            )
        return RegistryError(f"the schema registry at {self.url} refuses {path}: {message} ({code})")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere is not who the password is for."""

    def redirect_request(self, *_: Any) -> None:
        return None


@lru_cache(maxsize=SCHEMAS_MAX)
def _by_id(registry: BlockingRegistry, schema_id: int) -> RegisteredSchema:
    return registry._registered(registry._ask("GET", f"/schemas/ids/{schema_id}"), schema_id)


@lru_cache(maxsize=64)
def _context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context
    except OSError as error:  # SSLError is one
        named = ", ".join(path for path in (ca, certificate, key) if path)
        raise RegistryError(f"the certificates for the schema registry ({named}) cannot be used: {error}") from None


def _checked_url(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise RegistryError(f"{url!r} is not a registry's URL: write http://host:8081")


def _body(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.kind != AVRO:
        body["schemaType"] = schema.kind
    if schema.references:
        body["references"] = [reference._asdict() for reference in schema.references]
    return body


def _references(found: dict[str, Any]) -> tuple[Reference, ...]:
    rows = found.get("references") or ()
    return tuple(Reference(str(row["name"]), str(row["subject"]), int(row["version"])) for row in rows)


def _answer(error: urllib.error.HTTPError) -> tuple[int, str]:
    """The registry's own code and words, or HTTP's."""
    try:
        body = json.loads(error.read(ANSWER_BYTES_MAX))
        return int(body["error_code"]), str(body["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.code, str(error.reason)


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")
