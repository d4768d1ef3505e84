"""Chat completions as a load, closed or open, on any OpenAI-compatible server. Every request becomes a row.

    locust -f benchmarks/load/locustfile.py --headless --host http://127.0.0.1:8000 --users 4 --run-time 60s

Without --headless, locust's page (port 8089) starts and stops the load and shows it: TTFT, TPOT and the share of
accepted drafts stand below the requests, as times in ms and per cent. An API key is read from OPENAI_API_KEY.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gevent
import httpx
from gevent.pool import Group
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import LocalRunner

from benchmarks.load.arrivals import poisson_gaps
from benchmarks.load.chat_client import ChatSettings
from benchmarks.load.recording import Recording, first_model, load_session
from benchmarks.metrics import acceptance_rate
from benchmarks.results import HttpRequest
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.errors import ConfigError

RESULTS = Path("results/load")
FAILURE_PAUSE_S = 0.5


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser, **_: Any) -> None:
    """Of the command line and the web page."""
    group = parser.add_argument_group("chat completions")
    group.add_argument("--model", default="", help="the first that the server names")
    group.add_argument("--max-tokens", type=int, default=64, help="of an answer (64)")
    group.add_argument("--no-stream", action="store_true", help="whole answers: there is no TTFT and no TPOT then")
    group.add_argument("--ignore-eos", action="store_true", help="all answers are --max-tokens long (vLLM, Eyrie)")
    group.add_argument(
        "--arrivals",
        choices=["closed", "poisson"],
        default="closed",
        help="closed: a user's next request follows its last answer; poisson: it follows nothing (closed)",
    )
    group.add_argument("--rate", type=float, default=0.5, help="poisson: requests a second of each user (0.5)")
    group.add_argument("--prompts", default=str(OWN_PROMPTS), help="JSON lines with `turns`")
    group.add_argument("--seed", type=int, default=0, help="of prompts' order and arrivals (0)")
    group.add_argument("--out", default="", help=f"file of rows; {RESULTS}/MODEL.jsonl by default")


class ChatUser(User):
    """A closed user has one request at a time; an open one sends at the moments of a Poisson process."""

    recording: ClassVar[Recording | None] = None
    """Of the load that runs. Locust makes the users, and their class is all that they share."""
    begun: ClassVar[int] = 0
    """Users so far: each has another seed."""

    def on_start(self) -> None:
        """Locust calls it when the user starts."""
        options: Any = self.environment.parsed_options
        self.gaps: Iterator[float] | None = None
        self.in_flight = Group()
        self.failed = False
        if options.arrivals == "poisson":
            self.gaps = poisson_gaps(options.rate, f"{options.seed} {ChatUser.begun}")
            self.due = time.perf_counter()
        ChatUser.begun += 1

    @task
    def chat(self) -> None:
        """One request: waited for in a closed load."""
        if self.gaps is None:
            self.request()
            return
        self.due += next(self.gaps)
        time.sleep(max(self.due - time.perf_counter(), 0.0))
        self.in_flight.start(self.in_flight.greenlet_class(self.request))

    def wait_time(self) -> float:
        """None between tasks: `chat` waits itself. After a failure a moment, so that a closed user does not spin."""
        return FAILURE_PAUSE_S if self.gaps is None and self.failed else 0.0

    def on_stop(self) -> None:
        """What is in flight has --stop-timeout to end; what is then given up is a row, too."""
        self.in_flight.join(timeout=self.environment.stop_timeout or 0.0)
        self.in_flight.kill()

    def request(self) -> None:
        """Ask, and tell locust."""
        assert self.recording is not None
        runner = self.environment.runner
        row = self.recording.one(runner.user_count if runner else 0)
        self.failed = row.failure is not None
        tell(self.environment, row)


def tell(environment: Environment, row: HttpRequest) -> None:
    """What locust's tables and page show of `row`."""
    served = row.served
    figures: list[tuple[str, float]] = []
    if served is not None:
        if served.first_content is not None:
            figures.append(("TTFT, ms", 1e3 * served.first_content))
        if served.tpot is not None:
            figures.append(("TPOT, ms", 1e3 * served.tpot))
        if served.acceptance is not None and served.acceptance.drafted:
            figures.append(("accepted drafts, %", 100 * acceptance_rate(served.acceptance)))
    environment.events.request.fire(
        request_type="POST",
        name="/v1/chat/completions",
        response_time=1e3 * served.end_to_end if served else 0.0,
        response_length=served.tokens if served else 0,
        exception=None if served else RuntimeError(row.failure),
        context={},
    )
    for name, value in figures:
        environment.events.request.fire(
            request_type="of it", name=name, response_time=value, response_length=0, exception=None, context={}
        )


@events.init.add_listener
def prepare(environment: Environment, **_: Any) -> None:
    """Refuse workers: rows of several processes would get into each other."""
    if not isinstance(environment.runner, LocalRunner):
        sys.exit("--processes, --master and --worker: one process keeps the rows; start it without them")
    # The loop's clock stood still while torch was imported: --run-time would be as much shorter.
    gevent.get_hub().loop.update_now()
    # It would print a line a request.
    logging.getLogger("httpx").setLevel(logging.WARNING)


@events.test_start.add_listener
def begin(environment: Environment, **_: Any) -> None:
    """Everything that may be wrong is found before the first request."""
    options: Any = environment.parsed_options
    if not environment.host:
        sys.exit("--host: got none; allowed: the server's address, as http://127.0.0.1:8000")
    if options.arrivals == "poisson" and not options.rate > 0:
        sys.exit(f"--rate: got {options.rate}; allowed: requests a second above 0")
    key = os.environ.get("OPENAI_API_KEY")
    client = httpx.Client(
        base_url=environment.host,
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(600.0, connect=10.0),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    )
    try:
        prompts = read_prompts(Path(options.prompts))
        model = options.model or first_model(client)
    except (ConfigError, OSError) as error:
        sys.exit(str(error))
    settings = ChatSettings(model, options.max_tokens, not options.no_stream, ignore_eos=options.ignore_eos)
    rate = options.rate if options.arrivals == "poisson" else None
    session = load_session(environment.host, options.arrivals, rate, settings)
    ChatUser.begun = 0
    ChatUser.recording = Recording(client, settings, prompts, options.arrivals, session, options.seed)


@events.test_stop.add_listener
@events.quitting.add_listener
def end(environment: Environment, **_: Any) -> None:
    """Write what is not written."""
    options: Any = environment.parsed_options
    recording = ChatUser.recording
    if recording is not None and recording.rows:
        path = Path(options.out) if options.out else RESULTS / f"{recording.settings.model.replace('/', '--')}.jsonl"
        recording.write(path)
        print(f"rows: {path}, session {recording.session.id}")
