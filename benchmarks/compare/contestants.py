"""What is compared: the drafters that a command names, and every K."""

import re
from dataclasses import dataclass

from replicas.config import MAX_SPECULATIVE_TOKENS, EngineConfig, SpeculativeConfig
from replicas.errors import ConfigError
from serve_app.checkpoint_paths import resolve_checkpoint
from serve_app.settings import ModelSettings

METHODS = {"small": "draft_model", "draft_model": "draft_model", "eagle3": "eagle3", "mtp": "mtp", "ngram": "ngram"}
"""Method of each name; `small` is the second seed's."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One drafter."""

    name: str
    speculative: SpeculativeConfig


def contestants(names: str, largest_k: int, model: ModelSettings) -> list[Contestant]:
    """Of `names`, like "small,eagle3=FOLDER,ngram".

    Without a folder a drafter is the config's own of that method, or else lies in configs/drafters/ID-NAME, ID being
    the model's; mtp may also be the target's own layer. Raises ConfigError, in one sentence.
    """
    found: list[Contestant] = []
    for part in names.split(","):
        name, _, folder = part.partition("=")
        if name not in METHODS:
            raise ConfigError(f"--drafter: got {name!r}; allowed: {', '.join(METHODS)}, each perhaps with =FOLDER")
        found.append(Contestant(name, _config_of(name, folder, largest_k, model)))
    if len({one.name for one in found}) < len(found):
        raise ConfigError(f"--drafter: got {names!r}; allowed: distinct names")
    return found


def _config_of(name: str, folder: str, k: int, model: ModelSettings) -> SpeculativeConfig:
    method = METHODS[name]
    own = model.speculative_config
    if not folder and own is not None and own.method == method:
        config = own.model_copy(update={"num_speculative_tokens": k, "allowed_num_speculative_tokens": None})
        return _resolved(config)
    where = folder or f"configs/drafters/{model.id}-{name}"
    fields: dict[str, object] = {"method": method, "num_speculative_tokens": k}
    if method == "ngram":
        return SpeculativeConfig.model_validate(fields)
    try:
        return SpeculativeConfig.model_validate(fields | {"model": resolve_checkpoint(where)})
    except ConfigError as error:
        if method == "mtp" and not folder:
            return SpeculativeConfig.model_validate(fields)
        raise ConfigError(f"--drafter {name}: {error}; name its folder with {name}=FOLDER") from error


def _resolved(config: SpeculativeConfig) -> SpeculativeConfig:
    return config if config.model is None else config.model_copy(update={"model": resolve_checkpoint(config.model)})


def ks_of(text: str) -> list[int]:
    """Ascending K of "1..8" or "1,2,4". Raises ConfigError."""
    span = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if span:
        found = set(range(int(span[1]), int(span[2]) + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        found = {int(part) for part in text.split(",")}
    else:
        found = set[int]()
    if not found or not 1 <= min(found) <= max(found) <= MAX_SPECULATIVE_TOKENS:
        raise ConfigError(f"--k: got {text!r}; allowed: 1..8 or 1,2,4, between 1 and {MAX_SPECULATIVE_TOKENS}")
    return sorted(found)


def alone(config: EngineConfig, speculative: SpeculativeConfig | None) -> EngineConfig:
    """`config` for one sequence at a time that drafts as `speculative` says; nothing is cached between answers."""
    changes = {"enable_prefix_caching": False, "max_num_seqs": 1, "num_blocks": None}
    return config.model_copy(update=changes | {"speculative_config": speculative})
