"""What every part of the settings is: immutable, and without keys that nobody knows."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class StrictSettings(BaseModel):
    """The base of a part."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
