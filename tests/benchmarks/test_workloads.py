"""Reading prompts."""

import json
from pathlib import Path

from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts, with_background


def test_first_turns_in_order(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"category": "a", "turns": [f"question {index}", "and then?"]} for index in range(10)]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert [p.text for p in read_prompts(file)] == [f"question {index}" for index in range(10)]
    assert read_prompts(file)[0] == Prompt("a", "question 0")
    assert read_prompts(file)[0].messages == [{"role": "user", "content": "question 0"}]


def test_a_limit_spreads_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"turns": [str(index)]}) for index in range(80)))
    assert [p.text for p in read_prompts(file, 4)] == ["0", "20", "40", "60"]
    assert len(read_prompts(file, 500)) == 80


def test_own_prompts_are_varied() -> None:
    prompts = read_prompts(OWN_PROMPTS)
    assert len(prompts) == 40
    assert len({p.category for p in prompts}) >= 8


def test_background_lengthens_a_prompt_and_leaves_its_question_last() -> None:
    others = [Prompt("", "one two three"), Prompt("", "four five")]
    asked = Prompt("math", "how many?")
    long = with_background(asked, others, 12, lambda text: len(text.split()))
    assert long.category == "math"
    assert long.text.endswith("how many?")
    assert long.text.count("one two three") == 2
    assert with_background(asked, others, 2, lambda text: len(text.split())) == asked
