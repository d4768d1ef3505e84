"""Chat completions as a load, closed or open, on any OpenAI-compatible server. Every request becomes a row.

    locust -f benchmarks/load/locustfile.py --headless --host http://127.0.0.1:8000 --users 4 --run-time 60s

Without --headless, locust's page (port 8089) starts and stops the load and shows it: TTFT, TPOT and the share of
accepted drafts stand below the requests, as times in ms and per cent. An API key is read from OPENAI_API_KEY.
"""

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gevent
from flask import Response, jsonify, request
from gevent.pool import Group
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import LocalRunner

from benchmarks.load.arrivals import poisson_gaps
from benchmarks.load.load_options import LoadOptions
from benchmarks.load.recording import Recording
from benchmarks.metrics import acceptance_rate
from benchmarks.results import HttpRequest
from benchmarks.workloads import OWN_PROMPTS
from replicas.errors import ConfigError

RESULTS = Path("results/load")
FAILURE_PAUSE_S = 0.5


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser, **_: Any) -> None:
    """Of the command line and the page, which knows nothing of groups: what is added to one is no field of it."""
    parser.add_argument("--model", default="", help="the first that the server names")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--no-stream", action="store_true", help="whole answers: there is no TTFT and no TPOT then")
    parser.add_argument("--ignore-eos", action="store_true", help="all answers are --max-tokens long (vLLM, Eyrie)")
    parser.add_argument(
        "--arrivals",
        choices=["closed", "poisson"],
        default="closed",
        help="closed: a user's next request follows its last answer; poisson: it follows nothing (closed)",
    )
    parser.add_argument("--rate", type=float, default=0.5, help="poisson: requests a second of each user (0.5)")
    parser.add_argument("--prompts", default=str(OWN_PROMPTS), help="JSON lines with `turns`")
    parser.add_argument("--seed", type=int, default=0, help="of prompts' order and arrivals (0)")
    parser.add_argument("--out", default="", help=f"file of rows; {RESULTS}/MODEL.jsonl by default")


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
    if environment.web_ui is not None and environment.web_ui.app is not None:
        environment.web_ui.app.before_request(lambda: refusal(environment))


def refusal(environment: Environment) -> Response | None:
    """What the page says instead of starting a load that cannot run; None if it can, or if none is asked for."""
    if request.method != "POST" or not request.path.endswith("/swarm"):
        return None
    try:
        LoadOptions.of(environment.parsed_options, environment.host, request.form).recording().client.close()
    except ConfigError as error:
        logging.getLogger(__name__).error("%s", error)
        return jsonify({"success": False, "message": str(error), "host": environment.host})
    return None


@events.test_start.add_listener
def begin(environment: Environment, **_: Any) -> None:
    """Everything that may be wrong is found before the first request."""
    try:
        recording = LoadOptions.of(environment.parsed_options, environment.host).recording()
    except ConfigError as error:
        if environment.web_ui is None:
            sys.exit(str(error))
        # The page has asked just before: the process stays for a next try.
        raise StopTest(str(error)) from error
    ChatUser.begun = 0
    ChatUser.recording = recording


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
