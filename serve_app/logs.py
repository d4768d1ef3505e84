"""What Eyrie writes to the log of its processes: one handler, one format, the request's id in each line."""

import logging
from typing import Literal

from serve_app.request_ids import RequestIdFilter

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LOGGERS = ("serve_app", "replicas")
FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


def write_logs(level: LogLevel) -> None:
    """Write our records from `level` on to stderr, which Ray collects a process. Again: only the level changes."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not any(isinstance(handler, _OwnHandler) for handler in logger.handlers):
            handler = _OwnHandler()
            handler.addFilter(RequestIdFilter())
            handler.setFormatter(logging.Formatter(FORMAT))
            logger.addHandler(handler)


class _OwnHandler(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Tells ours from others that somebody added."""
