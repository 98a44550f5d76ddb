"""`headrace.SchemaRegistry`: a schema registry from asyncio."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.client.registry.blocking import BlockingRegistry

T = TypeVar("T")
P = ParamSpec("P")


def _in_thread(
    method: Callable[Concatenate[BlockingRegistry, P], T],
) -> Callable[Concatenate["SchemaRegistry", P], Coroutine[Any, Any, T]]:
    """The same method in a thread: questions are rare, and the event loop turns while the answer is awaited."""

    async def call(registry: "SchemaRegistry", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, registry.blocking, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class SchemaRegistry:
    """A schema registry (Confluent's, Apicurio's at `/apis/ccompat/v7`, Karapace), for serializers and by itself.

        registry = headrace.SchemaRegistry("https://user:password@registry:8081", ca="ca.pem")
        serializer = headrace.Avro(schema, registry=registry)
        schema = await registry.latest("orders-value")

    Connects when asked, and has nothing to close. Takes what `BlockingRegistry` does.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.blocking = BlockingRegistry(url, **options)

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.blocking.url!r})"

    by_id = _in_thread(BlockingRegistry.by_id)
    latest = _in_thread(BlockingRegistry.latest)
    version = _in_thread(BlockingRegistry.version)
    register = _in_thread(BlockingRegistry.register)
    lookup = _in_thread(BlockingRegistry.lookup)
    subjects = _in_thread(BlockingRegistry.subjects)
    versions = _in_thread(BlockingRegistry.versions)
    delete_subject = _in_thread(BlockingRegistry.delete_subject)
    is_compatible = _in_thread(BlockingRegistry.is_compatible)
    compatibility = _in_thread(BlockingRegistry.compatibility)
    set_compatibility = _in_thread(BlockingRegistry.set_compatibility)


def blocking_of(given: "SchemaRegistry | BlockingRegistry | str | None") -> BlockingRegistry | None:
    """What a serializer was given as its registry: either face of one, or a URL."""
    if isinstance(given, SchemaRegistry):
        return given.blocking
    return BlockingRegistry(given) if isinstance(given, str) else given
