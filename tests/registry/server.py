"""A schema registry of a few lines, in a thread: what Confluent's answers, and failures on demand."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

Answer = tuple[int, Any]
"""A status and a document."""


class RegistryServer:
    """`with RegistryServer() as registry: registry.url`. `requests` counts what was asked."""

    def __init__(self, password: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.failures: list[int] = []
        """Status codes to answer with, before anything else."""
        self.password = password
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(server.get)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                self._answer(lambda path: server.post(path, body))

            def _answer(self, handle: Callable[[str], Answer]) -> None:
                server.requests.append((self.command, self.path))
                body: Any
                status, body = 401, {"error_code": 40101, "message": "Unauthorized"}
                if server.failures:
                    status, body = server.failures.pop(0), {"error_code": 50001, "message": "planted"}
                elif server.is_welcome(self.headers.get("Authorization")):
                    status, body = handle(self.path)
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def is_welcome(self, authorization: str | None) -> bool:
        return self.password is None or authorization == "Basic " + base64.b64encode(self.password.encode()).decode()

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: Iterable[Any] = ()) -> int:
        """The id of a schema, new or known."""
        entry = {"schema": schema, "schemaType": kind, "references": list(references)}
        if entry not in self.schemas:
            self.schemas.append(entry)
        schema_id = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def get(self, path: str) -> Answer:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[number - 1]
        versions = self.subjects.get(parts[1])
        if versions is None:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        if len(parts) == 3:
            return 200, list(range(1, len(versions) + 1))
        index = len(versions) if parts[3] == "latest" else int(parts[3])
        schema_id = versions[index - 1]
        return 200, {"subject": parts[1], "id": schema_id, "version": index, **self.schemas[schema_id - 1]}

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        subject = unquote(path.strip("/").split("/")[1])
        if not path.endswith("/versions"):
            return self.lookup(subject, body)
        return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}

    def lookup(self, subject: str, body: dict[str, Any]) -> Answer:
        for version, schema_id in enumerate(self.subjects.get(subject, ()), start=1):
            entry = self.schemas[schema_id - 1]
            if entry["schema"] == body["schema"]:
                return 200, {"subject": subject, "id": schema_id, "version": version, **entry}
        return 404, {"error_code": 40403, "message": "Schema not found"}
