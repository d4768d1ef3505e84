"""A log line as one JSON object, for machines that collect logs."""

import json
import logging
from datetime import datetime, timezone


class JsonFormatter(logging.Formatter):
    """time, level, logger, request_id, message; then what a record was given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "request_id": getattr(record, "request_id", "-"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII: a line stays one line whatever a message quotes.
        return json.dumps(line, default=str)
