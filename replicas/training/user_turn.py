"""What the target's chat template puts around a user's turn."""

from transformers import PreTrainedTokenizerBase

from replicas.errors import CheckpointError


def around_user_turn(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Tokens before the user's text, and those between it and the answer.

    Raises CheckpointError where the template puts nothing there: then no model knows where a turn begins or ends.
    """
    probe = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\x00"}], add_generation_prompt=True, tokenize=False
    )
    before, after = str(probe).split("\x00")
    around = tokenizer.encode(before, add_special_tokens=False), tokenizer.encode(after, add_special_tokens=False)
    if not all(around):
        raise CheckpointError(
            f"the chat template writes {before!r} before a user's text and {after!r} after it; both must have tokens"
        )
    return around
