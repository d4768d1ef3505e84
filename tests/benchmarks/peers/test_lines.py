"""The workers' side of the protocol."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import lines

WORKER = """
import os
from benchmarks.peers.lines import Ask, Told, serve

class Loud:
    versions = {"loud": "1"}

    def answer(self, ask):
        print("a library says this")
        os.write(1, b"and a C library this\\n")
        return Told([(0.5, ask.tokens)], [ask.prompt[0]] * ask.tokens)

serve(Loud)
"""


def test_only_answers_come_out_and_the_rest_goes_to_the_screen() -> None:
    asked = json.dumps({"prompt": [6], "tokens": 2, "mode": "", "may_end": False})
    root = Path(lines.__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=f"{asked}\n{asked}\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    ready, *answers = map(json.loads, ended.stdout.splitlines())
    assert ready == {"versions": {"loud": "1"}}
    assert answers == [{"chunks": [[0.5, 2]], "token_ids": [6, 6]}] * 2
    assert ended.stderr.count("and a C library this") == 3
    assert ended.stderr.count("a library says this") == 3


def test_the_protocol_needs_nothing_but_python() -> None:
    # A peer's environment has nothing of ours: isolated, without any installed package.
    root = Path(lines.__file__).parents[2]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import benchmarks.peers.lines"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
