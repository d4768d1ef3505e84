"""Published figures of the instances with NeuronCore-v2. Nothing here was measured by us.

Source: AWS Neuron documentation 2.33: "Inferentia2 architecture", "Amazon EC2 Inf2 architecture", "Trainium
architecture", "Amazon EC2 Trn1 architecture", "Neuron device memory".
"""

from replicas.devices.memory_plan import GIB, MIB, MemoryPool

NEURON_CORES = {
    "inf2.xlarge": 2,
    "inf2.8xlarge": 2,
    "inf2.24xlarge": 12,
    "inf2.48xlarge": 24,
    "trn1.2xlarge": 2,
    "trn1.32xlarge": 32,
    "trn1n.32xlarge": 32,
}
"""NeuronCores of an EC2 instance type; two a chip."""
CORE_MEMORY = 16 * GIB
"""Half of a chip's 32 GiB."""
CORE_BANDWIDTH = 410 * GIB
"""Bytes a second: half of a chip's 820 GiB/s."""
CORE_BF16_FLOPS = 95e12
"""Half of a chip's 190 TFLOPS."""
LINK_BANDWIDTH = 192 * GIB
"""NeuronLink-v2 between Inferentia2 chips, bytes a second a chip (inf2.24xlarge and inf2.48xlarge)."""
MICROCODE = 96 * MIB
"""What the runtime takes on each core."""
PROGRAM_BYTES = 12 * MIB
"""Of one compiled program (NEFF), on each core and in the cache. An assumption: the largest of those decoders that lie
in public caches, which have 0.1 to 12 MiB."""


def core_pool(num_programs: int) -> MemoryPool:
    """One NeuronCore on which `num_programs` programs are loaded."""
    return MemoryPool("one NeuronCore-v2", CORE_MEMORY, MICROCODE + num_programs * PROGRAM_BYTES)
