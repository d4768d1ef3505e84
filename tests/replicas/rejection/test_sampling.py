from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from replicas.rejection.sampling import SamplingInputs, choose, exponential_noise
from replicas.request import SamplingParams
from tests.reference import rejection as reference
from tests.reference.rejection import filtered, softmax

DRAWS = 20_000


def pvalue(result: Any) -> float:
    return float(result.pvalue)


def sampling(
    batch: int,
    temperature: float | Tensor = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: Tensor | None = None,
) -> SamplingInputs:
    return SamplingInputs(
        temperature=temperature if isinstance(temperature, Tensor) else torch.full((batch,), temperature),
        top_k=torch.full((batch,), top_k, dtype=torch.int32),
        top_p=torch.full((batch,), top_p),
        min_p=torch.full((batch,), min_p),
        seed=torch.arange(batch, dtype=torch.int32) if seed is None else seed,
        is_filtered=top_k > 0 or top_p < 1.0 or min_p > 0.0,
    )


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_noise_is_exponential() -> None:
    noise = exponential_noise(int32(1, 2, 2**31 - 1, 0), int32(0, 17, 2047, 3), 25_000)
    assert noise.dtype == torch.float32
    assert bool((noise > 0).all())
    for row in noise:
        assert stats.kstest(row.numpy(), "expon").pvalue > 0.001
    assert stats.kstest(noise.flatten().numpy(), "expon").pvalue > 0.001


def test_noise_is_the_references() -> None:
    seeds, positions = (1, 2**31 - 1, 0, 77_777), (0, 2047, 3, 131_071)
    noise = exponential_noise(int32(*seeds), int32(*positions), 5000)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        found, wanted = noise[row].numpy(), reference.noise(seed, position, 5000)
        # Winners of the race are small; large values come from uniforms that float32 rounds near 1.
        assert found[wanted < 1] == pytest.approx(wanted[wanted < 1], rel=1e-5)
        assert np.exp(-found) == pytest.approx(np.exp(-wanted), abs=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.3),
        SamplingParams(temperature=0.8, top_k=9, top_p=0.9),
        SamplingParams(temperature=0.8, min_p=0.05),
    ],
)
def test_every_draw_is_the_references(params: SamplingParams) -> None:
    logits = 2 * torch.randn(400, 60, generator=torch.Generator().manual_seed(6))
    positions = torch.arange(400, dtype=torch.int32).view(100, 4)
    inputs = sampling(100, params.temperature, params.top_k, params.top_p, params.min_p)
    drawn = choose(logits, positions, inputs).flatten().tolist()
    for row, token in enumerate(drawn):
        assert token == reference.choose(logits[row].double().numpy(), row, replace(params, seed=row // 4))


@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_noise_of_one_token_is_exponential_along(along: str) -> None:
    running, still = torch.arange(DRAWS, dtype=torch.int32), torch.full((DRAWS,), 5, dtype=torch.int32)
    seeds, positions = (running, still) if along == "seeds" else (still, running)
    noise = exponential_noise(seeds, positions, 3).numpy()
    for token in range(3):
        assert stats.kstest(noise[:, token], "expon").pvalue > 0.001


def test_noise_is_independent_between_neighbouring_seeds_positions_and_tokens() -> None:
    vocabulary = 20_000
    base = exponential_noise(int32(7), int32(100), vocabulary)[0].numpy()
    others = {
        "seed": exponential_noise(int32(8), int32(100), vocabulary)[0].numpy(),
        "position": exponential_noise(int32(7), int32(101), vocabulary)[0].numpy(),
        "swapped": exponential_noise(int32(100), int32(7), vocabulary)[0].numpy(),
        "token": np.roll(base, 1),
    }
    for other in others.values():
        assert pvalue(stats.pearsonr(base, other)) > 0.001
        assert pvalue(stats.spearmanr(base, other)) > 0.001


def test_joint_draws_at_neighbouring_positions_are_independent() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    logits = probabilities.log().repeat(2 * DRAWS, 1)
    positions = int32(4, 5).repeat(DRAWS, 1)
    drawn = choose(logits, positions, sampling(DRAWS))
    counts = np.bincount((drawn[:, 0] * 3 + drawn[:, 1]).numpy(), minlength=9)
    expected = np.outer(probabilities, probabilities).flatten() * DRAWS
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 0.001


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.6, 0, 1.0, 0.0),
        (1.5, 5, 1.0, 0.0),
        (1.0, 0, 0.7, 0.0),
        (1.0, 0, 1.0, 0.2),
        (0.8, 8, 0.9, 0.05),
    ],
)
def test_draws_follow_the_filtered_target(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    drawn = choose(
        logits.repeat(DRAWS, 1), int32(9).repeat(DRAWS, 1), sampling(DRAWS, temperature, top_k, top_p, min_p)
    )
    expected = filtered(softmax(logits.numpy(), temperature), top_k, top_p, min_p)
    counts = np.bincount(drawn.flatten().numpy(), minlength=12)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept], expected[kept] / expected.sum() * DRAWS).pvalue > 0.001


def test_without_sampling_the_best_logit_is_chosen() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(2))
    chosen = choose(logits, torch.zeros(2, 3, dtype=torch.int32), None)
    assert chosen.dtype == torch.int32
    assert torch.equal(chosen, logits.argmax(-1).view(2, 3).int())


def test_greedy_and_sampled_sequences_share_a_batch() -> None:
    logits = torch.randn(12, 50, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(12, dtype=torch.int32).view(4, 3)
    temperature = torch.tensor([0.0, 1.0, 0.0, 0.7])
    mixed = choose(logits, positions, sampling(4, temperature))
    assert torch.equal(mixed[::2], logits.argmax(-1).view(4, 3)[::2].int())
    for row in (1, 3):
        alone = choose(
            logits.view(4, 3, 50)[row],
            positions[row : row + 1],
            sampling(1, float(temperature[row]), seed=int32(row)),
        )
        assert torch.equal(mixed[row : row + 1], alone)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(4))
    tokens = {
        (seed, position): int(choose(logits, int32(position)[None], sampling(1, seed=int32(seed))))
        for seed in range(8)
        for position in range(8)
    }
    # The same pairs in another batch, in another order, with filtered neighbours that switch the bisections on.
    pairs = list(reversed(tokens))
    batch = len(pairs)
    inputs = SamplingInputs(
        temperature=torch.ones(2 * batch),
        top_k=torch.tensor([0, 3] * batch, dtype=torch.int32),
        top_p=torch.ones(2 * batch),
        min_p=torch.zeros(2 * batch),
        seed=torch.tensor([seed for seed, _ in pairs for _ in range(2)], dtype=torch.int32),
        is_filtered=True,
    )
    positions = torch.tensor([[position] for _, position in pairs for _ in range(2)], dtype=torch.int32)
    drawn = choose(logits.repeat(2 * batch, 1), positions, inputs).flatten().tolist()
    assert drawn[::2] == [tokens[pair] for pair in pairs]
    assert len(set(drawn[::2])) > 10


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20, 1e-6])
def test_a_tiny_temperature_chooses_the_best_token(temperature: float) -> None:
    logits = torch.tensor([[10.0, 30.0, 20.0, -5.0]])
    for inputs in (sampling(1, temperature), sampling(1, temperature, top_p=0.9), sampling(1, temperature, top_k=2)):
        assert choose(logits, int32(3)[None], inputs).item() == 1
