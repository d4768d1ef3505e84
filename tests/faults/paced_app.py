"""The application over a tiny model whose steps take a set time, as a device's would, and can be made to hang."""

import os
import time
from pathlib import Path

from ray.serve import Application

from replicas.async_engine import AsyncEngine
from replicas.config import EngineBase, EngineConfig
from replicas.engine import Engine, build_engine
from replicas.scheduling.k_policy import KPolicy
from replicas.scheduling.step_plan import StepPlan, StepResult
from serve_app.app import build_application
from serve_app.settings import AppSettings

STEP_VARIABLE = "EYRIE_TEST_STEP_S"
"""Seconds of a step."""
HANG_VARIABLE = "EYRIE_TEST_HANG_FILE"
"""A file with the id of the process whose steps shall not end."""


def build(args: AppSettings) -> Application:
    """As serve_app.app:build."""
    return build_application(args, build_paced_engine)


def build_paced_engine(config: EngineBase, k_policy: KPolicy) -> AsyncEngine:
    """Our engine, slowed down."""
    return AsyncEngine(lambda: paced(build_engine(EngineConfig.model_validate(config), k_policy)))


def paced(engine: Engine) -> Engine:
    """`engine`, each of whose steps takes at least the set time."""
    seconds, hang = float(os.environ[STEP_VARIABLE]), Path(os.environ[HANG_VARIABLE])
    execute = engine._runner.execute

    def execute_slowly(plan: StepPlan) -> StepResult:
        begin = time.monotonic()
        while hang.exists() and hang.read_text() == str(os.getpid()):
            time.sleep(0.05)
        result = execute(plan)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        return result

    engine._runner.execute = execute_slowly
    return engine
