"""What a prompt may be, whichever engine takes it."""

from collections.abc import Sequence

from replicas.errors import RequestError


def check_prompt(token_ids: Sequence[int], max_model_len: int, vocab_size: int) -> None:
    """Raises RequestError for a prompt that is empty, too long, or holds tokens that the model does not have."""
    count = len(token_ids)
    if count == 0:
        raise RequestError("the prompt has no tokens; at least 1 is needed", "prompt")
    if count >= max_model_len:
        raise RequestError(
            f"the prompt has {count} tokens, but this model's maximum context length is {max_model_len} tokens, "
            f"prompt and completion together",
            "prompt",
            "context_length_exceeded",
        )
    wrong = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"the prompt holds token {wrong}; this model's tokens are 0 to {vocab_size - 1}", "prompt")
