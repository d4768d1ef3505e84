"""The ramp as locust's load shape. Named behind the locust file, it takes the place of --users and --run-time.

locust -f benchmarks/load/locustfile.py,benchmarks/load/ramp_shape.py --headless --host http://127.0.0.1:8000
"""

from typing import Any

from locust import LoadTestShape, events
from locust.argument_parser import LocustArgumentParser

from benchmarks.load.ramp import Ramp


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser, **_: Any) -> None:
    """Of the command line and the web page."""
    parser.add_argument("--peak-users", type=int, default=8, help="users at the top (8)")
    parser.add_argument("--ramp-steps", type=int, default=4, help="from one user to the top (4)")
    parser.add_argument("--step-s", type=float, default=15.0, help="seconds between two steps (15)")
    parser.add_argument("--hold-s", type=float, default=60.0, help="seconds at the top (60)")
    parser.add_argument("--quiet-s", type=float, default=20.0, help="seconds with one user, before and after (20)")


class RampShape(LoadTestShape):
    """Locust asks it every second."""

    def tick(self) -> tuple[int, float] | None:
        """Users, and how many of them may start a second."""
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        ramp = Ramp(options.peak_users, options.ramp_steps, options.step_s, options.hold_s, options.quiet_s)
        users = ramp.users(self.get_run_time())
        return None if users is None else (users, float(options.peak_users))
