"""User turns from templates."""

import itertools
import random
import re

import pytest

from replicas.training.user_requests import RequestTemplates

SLOTS = {"animal": ["fox", "owl"], "pet": ["a {animal} that is {2-4}"]}


def drawn(request: str, times: int = 40) -> set[str]:
    templates, order = RequestTemplates(slots=SLOTS, requests=[request]), random.Random(0)
    return {templates.draw(order) for _ in range(times)}


def test_slots_are_filled_also_inside_of_what_fills_them():
    assert drawn("Draw {pet}.") == {f"Draw a {animal} that is {age}." for animal in ("fox", "owl") for age in (2, 3, 4)}


def test_a_numbered_slot_stays_and_two_of_them_differ():
    assert drawn("{animal1}, {animal2}, {animal1}") == {"fox, owl, fox", "owl, fox, owl"}
    assert drawn("{animal}{animal}") == {"foxfox", "foxowl", "owlfox", "owlowl"}


def test_one_seed_gives_the_same_requests():
    templates = RequestTemplates.read()
    first, second = (random.Random(7) for _ in range(2))
    assert [templates.draw(first) for _ in range(50)] == [templates.draw(second) for _ in range(50)]


def test_an_unknown_slot_is_an_error():
    with pytest.raises(KeyError, match="planet"):
        drawn("{planet}")


def test_every_template_of_ours_can_be_filled():
    templates, order = RequestTemplates.read(), random.Random(1)
    for request in templates.requests:
        one = RequestTemplates(slots=templates.slots, requests=[request])
        for _ in range(20):
            assert not re.search(r"\{[a-z]+\d?\}|\{\d+-\d+\}", one.draw(order))
    used = set(
        re.findall(r"\{([a-z_]+)\d?\}", " ".join([*templates.requests, *itertools.chain(*templates.slots.values())]))
    )
    assert used == set(templates.slots)
