"""Checks a Serve YAML before `serve run`, which would go on running with a failed application.

python -m serve_app.validate configs/eagle3.yaml
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from replicas.errors import ConfigError
from serve_app.checkpoint_paths import resolve_checkpoint
from serve_app.k_policy import k_policy_of
from serve_app.serve_config import load_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Print OK, or one line a problem; the exit status says which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    path = parser.parse_args(arguments).config
    try:
        settings = load_settings(path)
        for model in settings.models:
            resolve_checkpoint(model.model)
            if model.speculative_config is not None and model.speculative_config.model is not None:
                resolve_checkpoint(model.speculative_config.model)
            k_policy_of(model)
    except ConfigError as error:
        print(f"{path} is wrong:\n{error}", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
