"""How a model samples where a request does not say."""

from typing import Annotated

from pydantic import Field

from serve_app.strict_settings import StrictSettings

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
"""What an option may be, in a request as in its default."""


class SamplingDefaults(StrictSettings):
    """For each option that a request leaves out. Those left out here, too, are OpenAI's defaults."""

    temperature: Temperature = 1.0
    """0: greedy."""
    top_p: TopP = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0: all tokens."""
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0


OPENAI_DEFAULTS = SamplingDefaults()
