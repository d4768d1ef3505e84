"""The `args` of the Serve YAML: which models, their engines, and how they scale."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, ModelWrapValidatorHandler, Tag, ValidationError, model_validator
from typing_extensions import Self

from replicas.config import EngineBase, EngineConfig
from replicas.errors import ConfigError
from replicas.vllm_engine.config import VllmConfig
from serve_app.autoscaling_settings import AutoscalingSettings, OngoingRequestsScaling
from serve_app.routing_settings import RoutingSettings
from serve_app.sampling_defaults import SamplingDefaults
from serve_app.strict_settings import Count, StrictSettings
from serve_app.untyped_data import mapping_or_none
from serve_app.validation_sentences import WHOLE, sentences

INGRESS_DEPLOYMENT = "Ingress"

REPLICA_VARIABLES = {
    # Threads that wait spin briefly, and weights lie in huge pages (docs/decisions/0007).
    "cpu": {"GOMP_SPINCOUNT": "40000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "neuron": {},
    "xla-cpu": {},
}
VLLM_VARIABLES = {"VLLM_NO_USAGE_STATS": "1"}
"""VLLM tells nobody of its use."""
NEURON_CORES = "neuron_cores"
"""Ray's name of the resource; a process that holds some finds their numbers in NEURON_RT_VISIBLE_CORES."""

DRAIN_S = 600.0
INGRESS_DRAIN_MARGIN_S = 30.0
"""The ingress outlives the replicas, so that it can tell clients of what became of their streams."""


class ResourceSettings(StrictSettings):
    """What one replica reserves in Ray. It reserves, it does not limit."""

    num_cpus: Annotated[float, Field(ge=0)] = 1
    memory: Annotated[int, Field(ge=1)] | None = None
    """Bytes."""
    neuron_cores: Count | None = None
    """None: one a rank on device neuron, else none."""
    num_gpus: Annotated[float, Field(ge=0)] | None = None
    """None: one a rank on device cuda, else none. Less than one: replicas share a GPU."""
    custom: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Other Ray resources, by name."""

    @model_validator(mode="after")
    def _cores_have_a_key_of_their_own(self) -> Self:
        if NEURON_CORES in self.custom:
            raise ValueError(f"custom holds {NEURON_CORES}; allowed: resources.neuron_cores, its own key")
        return self

    def ray_actor_options(self, neuron_cores: int = 0, num_gpus: int = 0) -> dict[str, Any]:
        """As Serve takes them, with `neuron_cores` and `num_gpus` where this says nothing of them."""
        cores = neuron_cores if self.neuron_cores is None else self.neuron_cores
        gpus = num_gpus if self.num_gpus is None else self.num_gpus
        resources = self.custom | ({NEURON_CORES: cores} if cores else {})
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "resources": resources}
        if gpus:
            options["num_gpus"] = gpus
        return options if self.memory is None else options | {"memory": self.memory}


class ServedModelSettings(EngineBase):
    """One model, whichever engine serves it: its name in the API, its K, and how its replicas scale."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", max_length=128)]
    """The `model` of a request."""
    k_schedule: Annotated[str, Field(min_length=1)] | None = None
    """A file that benchmarks.write_k_schedule wrote; None: `num_speculative_tokens` whatever the batch."""
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    """For requests that do not say."""
    live_k: bool = False
    """Let K also follow the acceptance that is seen while serving, within what the schedule measured."""
    autoscaling: AutoscalingSettings = OngoingRequestsScaling()
    routing: RoutingSettings = RoutingSettings()
    resources: ResourceSettings = ResourceSettings()
    max_ongoing_requests: Annotated[int, Field(ge=1)] | None = None
    """Requests that a replica holds; None: twice max_num_seqs, so that the next are ready when the batch has room."""
    max_queued_requests: Annotated[int, Field(ge=-1)] = 64
    """Requests that wait for a replica, an ingress replica; more get 429. -1: no limit."""

    @model_validator(mode="after")
    def _schedules_a_drafter(self) -> Self:
        if self.k_schedule is not None and self.speculative_config is None:
            raise ValueError(f"k_schedule is {self.k_schedule!r}, but there is no speculative_config to draft with")
        if self.live_k and self.k_schedule is None:
            raise ValueError("live_k is true, but there is no k_schedule, whose measured costs it weighs K by")
        return self

    @property
    def deployment_name(self) -> str:
        """Its name in Serve, where slashes would read as levels."""
        return self.id.replace("/", "--").replace(":", "--")

    @property
    def num_ongoing_requests(self) -> int:
        """`max_ongoing_requests`, with its default filled in."""
        return self.max_ongoing_requests or 2 * self.max_num_seqs

    @property
    def placement_options(self) -> dict[str, Any]:
        """Options of the deployment beside ray_actor_options, for replicas of several actors."""
        return {}


class ModelSettings(EngineConfig, ServedModelSettings):
    """A model that our own engine serves."""

    engine: Literal["eyrie"] = "eyrie"
    """Ours; vllm has keys of its own."""

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's part."""
        return EngineConfig.model_validate(self.model_dump(include=set(EngineConfig.model_fields)))

    @property
    def ray_actor_options(self) -> dict[str, Any]:
        """What a replica reserves, and the variables that its process starts with."""
        cores = self.tensor_parallel_size if self.device == "neuron" else 0
        variables = {"runtime_env": {"env_vars": REPLICA_VARIABLES.get(self.device, {})}}
        return self.resources.ray_actor_options(cores) | variables

    @property
    def placement_group_bundles(self) -> list[dict[str, float]] | None:
        """The replica's own placement group, where it owns NeuronCores: one bundle, since its ranks share a node."""
        options = self.ray_actor_options
        cores = options["resources"].get(NEURON_CORES)
        if not cores:
            return None
        bundle = {"CPU": options["num_cpus"], **options["resources"]}
        return [bundle | ({"memory": options["memory"]} if "memory" in options else {})]

    @property
    def placement_options(self) -> dict[str, Any]:
        """See ServedModelSettings."""
        bundles = self.placement_group_bundles
        return {} if bundles is None else {"placement_group_bundles": bundles}

    @model_validator(mode="after")
    def _each_rank_has_a_core(self) -> Self:
        cores = self.resources.neuron_cores
        if self.device == "neuron" and cores is not None and cores != self.tensor_parallel_size:
            raise ValueError(
                f"resources.neuron_cores is {cores}; on device neuron it should be tensor_parallel_size, "
                f"{self.tensor_parallel_size}, or be left out"
            )
        return self

    def data_on_device(self, device: str) -> dict[str, Any]:
        """The same model's keys on `device`, with its ranks and what it reserves in Ray unchanged."""
        reserved = {NEURON_CORES: self.ray_actor_options["resources"].get(NEURON_CORES, 0)}
        changes: dict[str, Any] = {"device": device, "resources": self.resources.model_dump() | reserved}
        if device == "cpu":
            changes |= {"executor": "lazy"}
        return self.model_dump() | changes


class VllmModelSettings(VllmConfig, ServedModelSettings):
    """A model that vLLM serves."""

    engine: Literal["vllm"]

    @property
    def engine_config(self) -> VllmConfig:
        """The engine's part."""
        return VllmConfig.model_validate(self.model_dump(include=set(VllmConfig.model_fields)))

    @property
    def ray_actor_options(self) -> dict[str, Any]:
        """What the replica's own process reserves, and the variables that it starts with."""
        cores = self.tensor_parallel_size if self.device == "neuron" else 0
        gpus = 1 if self.device == "cuda" and not self.uses_placement_group else 0
        return self.resources.ray_actor_options(cores, gpus) | {"runtime_env": {"env_vars": VLLM_VARIABLES}}

    @property
    def placement_options(self) -> dict[str, Any]:
        """One placement group for the replica and its ranks: a bundle a GPU, the replica's process in the first.

        The process itself takes no GPU: its ranks, the actors that vLLM starts, take one each.
        """
        if not self.uses_placement_group:
            return {}
        own = self.ray_actor_options
        first = {"CPU": own["num_cpus"], "GPU": 1, **own["resources"]}
        if "memory" in own:
            first["memory"] = own["memory"]
        others = [{"GPU": 1}] * (self.tensor_parallel_size - 1)
        return {"placement_group_bundles": [first, *others], "placement_group_strategy": "PACK"}

    @model_validator(mode="after")
    def _vllm_has_it(self) -> Self:
        if self.live_k:
            raise ValueError(
                "live_k is true; allowed with engine vllm: false, since vLLM fixes K by batch at its start"
            )
        if self.resources.num_gpus is not None and self.uses_placement_group:
            raise ValueError(
                f"resources.num_gpus is {self.resources.num_gpus}; with tensor_parallel_size "
                f"{self.tensor_parallel_size} each rank has one: leave it out"
            )
        return self

    def data_on_device(self, device: str) -> dict[str, Any]:
        """The same model's keys on `device` (cpu: as one rank)."""
        ranks = 1 if device == "cpu" else self.tensor_parallel_size
        return self.model_dump() | {"device": device, "tensor_parallel_size": ranks}


AnyModelSettings = ModelSettings | VllmModelSettings


def _engine_of(model: Any) -> str | None:
    """The tag by which pydantic tells one of AnyModelSettings."""
    fields = mapping_or_none(model)
    named = getattr(model, "engine", None) if fields is None else fields.get("engine", "eyrie")
    return named if isinstance(named, str) else None


ModelEntry = Annotated[
    Annotated[ModelSettings, Tag("eyrie")] | Annotated[VllmModelSettings, Tag("vllm")],
    Discriminator(
        _engine_of,
        custom_error_type="unknown_engine",
        custom_error_message="engine: allowed: eyrie (the default) or vllm",
    ),
]


class IngressSettings(StrictSettings):
    """The HTTP side: it parses, looks the model up and relays."""

    num_replicas: Annotated[int, Field(ge=1)] = 1
    num_cpus: Annotated[float, Field(ge=0)] = 0.25
    max_ongoing_requests: Annotated[int, Field(ge=1)] = 1024
    """Open requests, streams included, an ingress replica."""


class AuthSettings(StrictSettings):
    """Where the API keys are; exactly one of the two. Read where the application is built, which gets digests only."""

    keys_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """An environment variable that holds keys, separated by commas."""
    keys_file: Annotated[str, Field(min_length=1)] | None = None
    """A file with a key a line; lines that begin with # are comments."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.keys_variable is None) == (self.keys_file is None):
            raise ValueError("allowed: exactly one of keys_variable and keys_file")
        return self


class AppSettings(StrictSettings):
    """The whole of `args`. Anything wrong in it raises ConfigError: one line a problem."""

    models: Annotated[list[ModelEntry], Field(min_length=1)]
    ingress: IngressSettings = IngressSettings()
    auth: AuthSettings | Literal["none"] | None = None
    """API keys. null: those in the variable EYRIE_API_KEYS, or else requests from this machine only; none: anybody."""
    request_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """A request that takes longer is stopped with an error, which a stream gets as its last event."""
    retry_after_s: Annotated[int, Field(ge=0)] = 1
    """The Retry-After header of a 429."""
    drain_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """How long a replica that is to go may finish its requests; null: request_timeout_s, or 600 without."""
    health_check_period_s: Annotated[float, Field(gt=0)] = 2
    """How often Serve asks a replica whether it is well; a lost one is replaced about so much later."""

    @property
    def deployment_names(self) -> list[str]:
        """Every deployment of the application."""
        return [INGRESS_DEPLOYMENT, *(model.deployment_name for model in self.models)]

    @property
    def drain_s(self) -> float:
        """`drain_timeout_s`, with its default filled in."""
        return self.drain_timeout_s or self.request_timeout_s or DRAIN_S

    def on_device(self, device: str) -> "AppSettings":
        """The same application with every model on `device`, to try a deployment where its device is not.

        Raises ConfigError for a device that there is not.
        """
        models = [model.data_on_device(device) for model in self.models]
        return AppSettings.model_validate(self.model_dump() | {"models": models})

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        first: dict[str, str] = {INGRESS_DEPLOYMENT: "the ingress"}
        for index, model in enumerate(self.models):
            name = model.deployment_name
            if name in first:
                raise ValueError(f"models[{index}].id: {model.id!r} is taken by {first[name]}; allowed: distinct ids")
            first[name] = f"models[{index}]"
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # Serve validates the args by itself: this is the only place where its caller gets our sentences.
        try:
            return handler(data)
        except ValidationError as error:
            raise ConfigError("\n".join(line.removeprefix(f"{WHOLE}: ") for line in sentences(error, cls))) from None
