"""An OTLP collector on a port of this machine, which keeps what is posted to it."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """What was posted to it."""

    url: str
    posted: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def told(self) -> list[Any]:
        """The ResourceSpans of all posts."""
        return [one for _, body in self.posted for one in ExportTraceServiceRequest.FromString(body).resource_spans]

    def spans(self, trace_id: str) -> dict[str, tuple[str, Any]]:
        """Of one trace, by name: the part of the application that made it, and the span."""
        return {
            span.name: (_text(one.resource.attributes, "eyrie.part"), span)
            for one in self.told
            for scope in one.scope_spans
            for span in scope.spans
            if span.trace_id.hex() == trace_id
        }


def _text(attributes: Any, key: str) -> str:
    return next(attribute.value.string_value for attribute in attributes if attribute.key == key)


@contextmanager
def collecting() -> Generator[Collector]:
    """One that listens."""
    found = Collector("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
