"""What Eyrie writes to the log of its processes: one handler, text or JSON, the request's id in each line."""

import logging
from typing import Literal

from serve_app.json_logs import JsonFormatter
from serve_app.request_ids import RequestIdFilter

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogFormat = Literal["text", "json"]
LOGGERS = ("serve_app", "replicas")
FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


def write_logs(level: LogLevel, form: LogFormat = "text") -> None:
    """Write our records from `level` on to stderr, which Ray collects a process. Again: level and format change."""
    formatter = JsonFormatter() if form == "json" else logging.Formatter(FORMAT)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        own = [handler for handler in logger.handlers if isinstance(handler, _OwnHandler)]
        if not own:
            own = [_OwnHandler()]
            own[0].addFilter(RequestIdFilter())
            logger.addHandler(own[0])
        own[0].setFormatter(formatter)


class _OwnHandler(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Tells ours from others that somebody added."""
