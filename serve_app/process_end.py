"""The end of a replica whose engine is dead: its process ends, which Serve sees at once."""

import asyncio
import logging
import os

logger = logging.getLogger(__name__)

GRACE_S = 0.2
"""For the errors of open requests to leave."""
EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h."""


def end_process_soon() -> None:
    """End this process after a moment, whatever its threads do."""
    logger.error("the engine is dead: this replica ends, and Serve starts another one")
    # No sys.exit: it would wait for the engine's thread, which may be stuck.
    asyncio.get_running_loop().call_later(GRACE_S, os._exit, EXIT_STATUS)
