"""The model of a step's cost, against sums done by hand."""

from pathlib import Path

import pytest

from benchmarks import roofline
from benchmarks.published_models import LLAMA_31_8B
from benchmarks.roofline import Device, Work, forward, inf2, mean_acceptance_length, step_seconds
from benchmarks.step_costs import Timings, speculating_at, target_at
from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.weight_sizes import DecoderSizes, Precision, Shape, StoredModel
from tests.reference.tiny_checkpoints import write_head, write_target

SIZES = DecoderSizes(hidden_size=8, intermediate_size=16, num_heads=4, num_kv_heads=2, head_dim=2, num_layers=1)
TENSORS: dict[str, Shape] = {
    "model.embed_tokens.weight": (100, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 16),
    "model.layers.0.input_layernorm.weight": (8,),
    "lm_head.weight": (100, 8),
}
TARGET = StoredModel(SIZES, TENSORS, 64, 100)
HEAD = StoredModel(
    SIZES, {"fc.weight": (8, 24), "midlayer.mlp.down_proj.weight": (8, 16), "lm_head.weight": (10, 8)}, 64, 10
)
SLOW = Device("slow", bandwidth=100.0, peak=1e9, ranks=1, precision=Precision(linear=2, activation=4))


def test_a_pass_reads_every_product_and_the_context_once() -> None:
    products = 8 * 8 + 8 * 16 + 100 * 8
    work = forward(TARGET, SLOW, batch=3, tokens=2, context=10)
    # Keys and values of two heads of two elements; scores and their sum over the values, four heads.
    assert work == Work(2 * products + 4 * 3 * 10 * 8, 2 * products * 6 + 4 * 6 * 10 * 4 * 2)


def test_a_gathered_context_passes_three_times_and_ranks_share() -> None:
    device = Device("two", 100.0, 1e9, 2, Precision(2, 2), context_passes=3)
    products = (8 * 8 + 8 * 16 + 100 * 8) // 2
    assert forward(TARGET, device, 1, 1, 10).moved == 2 * products + 2 * 3 * 10 * 4


def test_a_tied_head_is_read_as_a_product() -> None:
    tied = StoredModel(SIZES, {n: s for n, s in TENSORS.items() if n != "lm_head.weight"}, 64, 100, ties_head=True)
    assert forward(tied, SLOW, 1, 1, 0) == forward(TARGET, SLOW, 1, 1, 0)


def test_the_larger_limit_counts() -> None:
    assert Work(200.0, 1e9).seconds(SLOW) == 2.0
    assert Work(200.0, 3e9).seconds(SLOW) == 3.0
    assert Work(200.0, 1e9).is_bound_by_memory(SLOW)
    assert not Work(200.0, 3e9).is_bound_by_memory(SLOW)
    # Verifying more rows moves nothing more, until arithmetic takes longer.
    one, many = (forward(TARGET, SLOW, 1, tokens, 0) for tokens in (1, 10**8))
    assert one.moved == many.moved
    assert (one.is_bound_by_memory(SLOW), many.is_bound_by_memory(SLOW)) == (True, False)


def test_a_step_drafts_once_over_all_rows_and_then_row_by_row() -> None:
    verify = forward(TARGET, SLOW, 1, 4, 10).seconds(SLOW)
    refresh = forward(HEAD, SLOW, 1, 4, 10).seconds(SLOW)
    # The later drafts start from the head's own state: fc is not read.
    later = (2 * (8 * 16 + 10 * 8) + 4 * 10 * 8) / 100
    assert step_seconds(TARGET, HEAD, SLOW, 1, 3, 10) == pytest.approx(verify + refresh + 2 * later)
    assert step_seconds(TARGET, HEAD, SLOW, 1, 0, 10) == forward(TARGET, SLOW, 1, 1, 10).seconds(SLOW)


def test_acceptance_adds_up() -> None:
    assert mean_acceptance_length(0, 0.7) == 1
    assert mean_acceptance_length(2, 0.5) == 1.75


def test_llama_on_one_chip_waits_for_its_weights() -> None:
    # 8.03 billion parameters but for the embedding, two bytes each, over two cores of 410 GiB/s.
    context = 1024
    weights = (8_030_261_248 - 128256 * 4096) / (410 * 2**30)
    kv = 3 * context * 32 * 2 * 4 * 128 * 2 / (410 * 2**30)
    target, head = LLAMA_31_8B.stored_target(context), LLAMA_31_8B.stored_head(context)
    assert step_seconds(target, head, inf2(2), 1, 0, context) == pytest.approx(weights + kv, rel=1e-3)


def test_the_page_holds_what_the_command_prints() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "inf2_roofline.md").read_text(encoding="utf-8")
    for table in roofline.inf2_tables().split("\n\n"):
        assert table in page


def test_the_cpu_s_table_sets_measured_beside_predicted(tiny_pair: EngineConfig) -> None:
    timings = Timings()
    for name in (target_at(0), target_at(2), speculating_at(2)):
        timings.add(name, 0.5)
    lines = roofline.cpu_table(tiny_pair, timings, SLOW, ks=(0, 2)).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        f"| {target_at(0)}",
        f"| {target_at(2)}",
        f"| {speculating_at(2)}",
    ]
    _, predicted, measured, ratio = (part.strip() for part in lines[2].strip("| ").split("|"))
    assert measured == "500.00"
    assert float(ratio) == pytest.approx(500 / float(predicted), abs=0.005)


@pytest.fixture
def tiny_pair(tmp_path: Path) -> EngineConfig:
    write_target(tmp_path / "target")
    write_head(tmp_path / "head")
    head = SpeculativeConfig(method="eagle3", model=str(tmp_path / "head"), num_speculative_tokens=2)
    return EngineConfig(model=str(tmp_path / "target"), max_model_len=128, speculative_config=head)
