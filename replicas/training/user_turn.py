"""What the target's chat template puts around a user's turn."""

from transformers import PreTrainedTokenizerBase


def around_user_turn(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Tokens before the user's text, and those between it and the answer."""
    probe = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\x00"}], add_generation_prompt=True, tokenize=False
    )
    before, after = str(probe).split("\x00")
    return tokenizer.encode(before, add_special_tokens=False), tokenizer.encode(after, add_special_tokens=False)
