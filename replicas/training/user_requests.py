"""Whole user turns, made from the templates of user_requests.yaml."""

import random
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from yaml import safe_load

TEMPLATES = Path(__file__).with_name("user_requests.yaml")
SLOT = re.compile(r"\{(?:(\d+)-(\d+)|([a-z_]+)(\d?))\}")


class RequestTemplates(BaseModel):
    """Requests with `{slots}`, what fills a slot of each name, and `{a-b}` for a whole number from a to b."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slots: dict[str, list[str]]
    requests: list[str]

    @classmethod
    def read(cls, path: Path = TEMPLATES) -> "RequestTemplates":
        """Those of the YAML file at `path`."""
        return cls.model_validate(safe_load(path.read_text()))

    def draw(self, order: random.Random) -> str:
        """One request, filled in. Raises KeyError for a slot that has no list."""
        return self._fill(order.choice(self.requests), order, {})

    def _fill(self, text: str, order: random.Random, chosen: dict[str, str]) -> str:
        """`chosen`: what the numbered slots so far hold; two of one name never hold the same."""

        def filling(slot: re.Match[str]) -> str:
            low, high, name, number = slot.groups()
            if not name:
                return str(order.randint(int(low), int(high)))
            if not number:
                return self._fill(order.choice(self.slots[name]), order, chosen)
            if name + number not in chosen:
                taken = {text for key, text in chosen.items() if key.startswith(name)}
                chosen[name + number] = order.choice([text for text in self.slots[name] if text not in taken])
            return chosen[name + number]

        return SLOT.sub(filling, text)
