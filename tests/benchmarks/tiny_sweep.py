"""A deployment of the tiny random target, and a sweep over it."""

import json
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write_sweep(folder: Path, target: Path, head: Path | None, **changes: Any) -> Path:
    """A sweep's YAML in `folder`, which names a deployment of `target` and `head`, and six prompts."""
    local = folder / "target"
    local.mkdir()
    for file in target.iterdir():
        (local / file.name).symlink_to(file)
    settings = json.loads((target / "tokenizer_config.json").read_text())
    (local / "tokenizer_config.json").unlink()
    (local / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    model: dict[str, Any] = {
        "id": "tiny",
        "model": str(local),
        "dtype": "float32",
        "num_threads": 1,
        "max_model_len": 128,
        "block_size": 4,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 2,
    }
    if head is not None:
        model["speculative_config"] = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    application = {"name": "a", "import_path": "serve_app.app:build", "args": {"models": [model]}}
    (folder / "deployment.yaml").write_text(
        yaml.safe_dump({"http_options": {"host": "127.0.0.1"}, "applications": [application]})
    )
    rows = [json.dumps({"category": "ab"[index % 2], "turns": [f"say {index}"]}) for index in range(6)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    sweep: dict[str, Any] = {
        "deployment": str(folder / "deployment.yaml"),
        "prompts": str(folder / "prompts.jsonl"),
        "k": [0, 2],
        "batch": [1, 2],
        "max_tokens": 5,
        "min_prompts": 3,
        "repeats": 2,
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep | changes))
    return path
