"""How a model samples where a request does not say."""

from typing import Annotated

from pydantic import Field

from serve_app.strict_settings import StrictSettings


class SamplingDefaults(StrictSettings):
    """For each option that a request leaves out. Those left out here, too, are OpenAI's defaults."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """0: greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0: all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0


OPENAI_DEFAULTS = SamplingDefaults()
