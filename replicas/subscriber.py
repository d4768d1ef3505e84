"""Where the news of one request go, from the thread of an engine to the event loop of a caller."""

import asyncio
import logging
from dataclasses import dataclass

from replicas.request import RequestOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A queue that lives in the caller's event loop."""

    loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[RequestOutput | Exception]"

    def tell(self, news: RequestOutput | Exception) -> None:
        """Any thread may call it."""
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, news)
        except RuntimeError:  # The caller's loop is closed: nobody listens any more.
            logger.debug("news for a closed event loop are dropped")
