"""What the config.json of an EAGLE3 head says, in the layouts that trainers write."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from replicas.errors import CheckpointError
from replicas.models.model_config import ModelConfig, model_config
from replicas.models.source import hf_config, read_config_fields

LayerIds = Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1)]


class NestedFields(BaseModel):
    """`eagle_config`, as SpecForge and ModelOpt write it."""

    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    use_aux_hidden_state: bool = True
    norm_before_fc: bool | None = None


class HeadFields(BaseModel):
    """The fields of config.json that are EAGLE3's own; absent and null mean the same."""

    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    eagle_config: NestedFields | None = None
    draft_vocab_size: Annotated[int, Field(ge=1)] | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    norm_output: bool | None = None
    speculators_model_type: str | None = None
    speculators_config: dict[str, Any] | None = None
    transformer_layer_config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """A head's shape, and where published heads differ."""

    decoder: ModelConfig
    draft_vocab_size: int
    tapped_layers: tuple[int, ...]
    """Boundaries of the target: i is the input of layer i, num_layers the output of the last."""
    norm_before_residual: bool
    """The residual of the attention is the state after `hidden_norm`, not before it."""
    norm_before_fc: bool
    """`input_norm` over all tapped states side by side comes before `fc`."""
    norm_output: bool
    """The next draft step reads the state after the last norm, not before it."""


def read_eagle3_config(folder: Path, target: ModelConfig) -> Eagle3Config:
    """The head in `folder`, for `target`. Raises CheckpointError for what is missing, or does not fit the target."""
    path = folder / "config.json"
    fields = read_config_fields(folder)
    try:
        head = HeadFields.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    nested = head.eagle_config or NestedFields()
    if not nested.use_aux_hidden_state:
        raise CheckpointError(
            f"{path}: eagle_config.use_aux_hidden_state is false; only heads that fuse layers' states are supported"
        )
    speculators = head.speculators_config is not None or head.speculators_model_type is not None
    if speculators:
        fields = speculators_decoder(path, head, fields)
    decoder = model_config(hf_config(fields, path))
    if decoder.num_layers != 1:
        raise CheckpointError(f"{path}: num_hidden_layers is {decoder.num_layers}; an EAGLE3 head has 1")
    check_hidden_size(path, head, decoder, target)
    residual = head.norm_before_residual
    return Eagle3Config(
        decoder=decoder,
        draft_vocab_size=head.draft_vocab_size or decoder.vocab_size,
        tapped_layers=tapped_layers(path, head, nested, target),
        # vLLM's defaults: speculators began with the normed residual, SafeAILab without.
        norm_before_residual=speculators if residual is None else residual,
        norm_before_fc=bool(nested.norm_before_fc if head.norm_before_fc is None else head.norm_before_fc),
        norm_output=bool(head.norm_output),
    )


def speculators_decoder(path: Path, head: HeadFields, fields: dict[str, Any]) -> dict[str, Any]:
    """The decoder layer's fields, which the speculators layout nests."""
    kind = head.speculators_model_type or (head.speculators_config or {}).get("algorithm")
    if kind != "eagle3":
        raise CheckpointError(f"{path}: speculators_model_type is {kind!r}; only 'eagle3' is supported")
    if head.transformer_layer_config is None:
        raise CheckpointError(f"{path} has no field 'transformer_layer_config', which the speculators layout needs")
    return head.transformer_layer_config | {"architectures": fields.get("architectures")}


def check_hidden_size(path: Path, head: HeadFields, decoder: ModelConfig, target: ModelConfig) -> None:
    """`fc` reads states of the target: what the head says about their size must be true."""
    name = "hidden_size" if head.target_hidden_size is None else "target_hidden_size"
    size = decoder.hidden_size if head.target_hidden_size is None else head.target_hidden_size
    if size != target.hidden_size:
        raise CheckpointError(f"{path}: {name} is {size}, but the target's is {target.hidden_size}")


def tapped_layers(path: Path, head: HeadFields, nested: NestedFields, target: ModelConfig) -> tuple[int, ...]:
    """Boundaries of the target that the head was trained on (docs/decisions/0010-layer-ids-of-heads.md).

    At the top, ids are boundaries (vLLM, speculators, first seed). In `eagle_config` they are outputs of layers, one
    boundary earlier, if the first is 1 (SpecForge, SGLang). Without any: an early, a middle and a late layer.
    """
    name = "eagle_aux_hidden_state_layer_ids"
    found: dict[str, tuple[int, ...]] = {}
    if head.eagle_aux_hidden_state_layer_ids:
        found[name] = tuple(head.eagle_aux_hidden_state_layer_ids)
    if ids := nested.eagle_aux_hidden_state_layer_ids:
        found[f"eagle_config.{name}"] = tuple(layer + (ids[0] == 1) for layer in ids)
    if len(set(found.values())) > 1:
        meanings = " and ".join(f"{place} the inputs of layers {list(layers)}" for place, layers in found.items())
        raise CheckpointError(f"{path}: {meanings} contradict each other; keep one of the two fields")
    place, layers = next(iter(found.items()), (f"without {name}, it", target.default_tapped_layers))
    if not all(0 <= layer <= target.num_layers for layer in layers):
        raise CheckpointError(
            f"{path}: {place} is {list(layers)}, but the target has the inputs of layers 0 to {target.num_layers - 1} "
            f"and, as {target.num_layers}, the output of the last"
        )
    return layers
