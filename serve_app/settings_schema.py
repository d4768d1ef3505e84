"""The JSON schema of a Serve YAML of ours: what an editor completes and checks while somebody writes one.

python -m serve_app.settings_schema > configs/settings.schema.json
"""

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from serve_app.live_settings import IngressLive, ModelLive
from serve_app.serve_config import IMPORT_PATH
from serve_app.settings import INGRESS_DEPLOYMENT, AppSettings


def settings_schema() -> dict[str, Any]:
    """Our parts in full: `args`, and the user_config of each deployment. Serve's own keys are left to Serve."""
    kinds = (AppSettings, IngressLive, ModelLive)
    references, definitions = models_json_schema([(kind, "validation") for kind in kinds])
    args, ingress, model = (references[kind, "validation"] for kind in kinds)
    deployment = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "A model's id, / and : as --, or Ingress."}},
        "required": ["name"],
        "if": {"properties": {"name": {"const": INGRESS_DEPLOYMENT}}},
        "then": {"properties": {"user_config": ingress}},
        "else": {"properties": {"user_config": model}},
    }
    application = {
        "type": "object",
        "properties": {
            "import_path": {"const": IMPORT_PATH},
            "args": args,
            "deployments": {"type": "array", "items": deployment},
        },
        "required": ["import_path", "args"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Eyrie: a Serve YAML",
        "type": "object",
        "properties": {"applications": {"type": "array", "items": application}},
        "required": ["applications"],
        **definitions,
    }


def main() -> None:
    """Print it."""
    print(json.dumps(settings_schema(), indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
