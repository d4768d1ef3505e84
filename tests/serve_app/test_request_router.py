"""Serve's router: what it is told, and the order that it gives back."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
from ray.serve.request_router import RequestRouter

from replicas.request import SamplingParams
from serve_app.generation import GenerationJob
from serve_app.request_router import PrefixAffinityRouter
from serve_app.routing_settings import RoutingSettings

DEPLOYMENT = DeploymentID("model", "app")
LONG = "a system prompt that many requests begin with. " * 20


def pending(request_id: str, *args: object) -> Any:
    context = SimpleNamespace(should_backoff=False)
    return SimpleNamespace(
        args=list(args), metadata=SimpleNamespace(internal_request_id=request_id), routing_context=context
    )


def asking(request_id: str, prompt: str, max_tokens: int = 100) -> Any:
    return pending(request_id, GenerationJob(request_id, prompt, SamplingParams(max_tokens=max_tokens)))


def replica(name: str, **stats: float) -> Any:
    return SimpleNamespace(replica_id=ReplicaID(name, DEPLOYMENT), routing_stats=stats)


def with_router(test: Callable[[PrefixAffinityRouter], Awaitable[None]]) -> None:
    async def run() -> None:
        router = PrefixAffinityRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA)
        kwargs = RoutingSettings(policy="prefix_affinity").serve_config()["request_router_kwargs"]
        router.initialize_state(**kwargs)
        await test(router)

    asyncio.run(run())


async def names(router: RequestRouter, replicas: list[Any], request: Any) -> list[str]:
    groups = await router.choose_replicas(replicas, request)
    assert all(len(group) == 1 for group in groups)
    return [group[0].replica_id.unique_id for group in groups]


def test_a_prompt_follows_those_that_begin_alike_until_they_end_elsewhere() -> None:
    async def test(router: PrefixAffinityRouter) -> None:
        replicas = [replica("a"), replica("b")]
        router.on_request_routed(asking("1", LONG + "one"), replicas[1].replica_id, None)
        assert await names(router, replicas, asking("2", LONG + "two")) == ["b", "a"]
        assert (await names(router, replicas, asking("3", "something else"))) == ["a", "b"]
        # Eleven of 100 tokens are more than the 512 that the match is worth.
        for number in range(10):
            router.on_request_routed(asking(f"x{number}", LONG + "x"), replicas[1].replica_id, None)
        assert await names(router, replicas, asking("4", LONG + "two")) == ["a", "b"]
        for number in range(10):
            router.on_request_completed(replicas[1].replica_id, f"x{number}")
        assert await names(router, replicas, asking("5", LONG + "two")) == ["b", "a"]

    with_router(test)


def test_requests_that_come_at_once_and_begin_alike_go_to_one_replica() -> None:
    async def test(router: PrefixAffinityRouter) -> None:
        replicas = [replica(name) for name in "abcdefgh"]
        # Nothing is routed in between, as when the replica has not accepted the first one yet.
        firsts = {(await names(router, replicas, asking(str(number), LONG + str(number))))[0] for number in range(8)}
        assert len(firsts) == 1

    with_router(test)


def test_what_replicas_tell_counts() -> None:
    async def test(router: PrefixAffinityRouter) -> None:
        replicas = [replica("a", running=3.0, waiting=1.0, kv_use=0.5), replica("b", running=1.0, kv_use=0.1)]
        for number in range(5):
            assert await names(router, replicas, asking(str(number), "hi")) == ["b", "a"]
        # Other calls than generate, and Serve's own looks without a request.
        assert await names(router, replicas, pending("t", (1, 2))) == ["b", "a"]
        assert await names(router, replicas, None) == ["b", "a"]

    with_router(test)


def test_own_requests_that_replicas_still_tell_of_are_not_taken_for_those_of_others() -> None:
    async def test(router: PrefixAffinityRouter) -> None:
        replicas = [replica("a", running=4.0), replica("b")]
        for number in range(4):
            router.on_request_routed(asking(str(number), LONG), replicas[0].replica_id, None)
        for number in range(4):
            router.on_request_completed(replicas[0].replica_id, str(number))
        # Four have ended, of which the replica has told when they ran: it is idle, and holds the prompt.
        assert await names(router, replicas, asking("5", LONG)) == ["a", "b"]

    with_router(test)


def test_of_equal_replicas_each_is_chosen_now_and_then() -> None:
    async def test(router: PrefixAffinityRouter) -> None:
        replicas = [replica("a"), replica("b"), replica("c")]
        firsts = {(await names(router, replicas, asking(str(number), "hi")))[0] for number in range(100)}
        assert firsts == {"a", "b", "c"}

    with_router(test)


def test_an_end_that_comes_before_the_begin_leaves_nothing_behind() -> None:
    async def test(router: PrefixAffinityRouter) -> None:
        router.on_request_completed(replica("a").replica_id, "1")
        router.on_request_routed(asking("1", "hi"), replica("a").replica_id, None)
        assert await names(router, [replica("a"), replica("b", running=0.5)], asking("2", "hi")) == ["a", "b"]

    with_router(test)


def test_settings_choose_the_router() -> None:
    assert RoutingSettings().serve_config() == {}
    config = RoutingSettings(policy="prefix_affinity", imbalance_tokens=7).serve_config()
    assert config["request_router_class"] == "serve_app.request_router:PrefixAffinityRouter"
    assert config["request_router_kwargs"] == {"imbalance_tokens": 7, "max_prefixes": 20000, "told_within_s": 5}
