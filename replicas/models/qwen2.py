"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and on nothing else."""

from replicas.devices.device_backend import Linear
from replicas.models.decoder_layer import LayerWeights
from replicas.models.llama import LlamaModel


class Qwen2Model(LlamaModel):
    """Its config.json has no field for the biases: they belong to the architecture."""

    def load_qkv(self, weights: LayerWeights) -> Linear:
        return weights.qkv(weights.hidden, bias=True)
