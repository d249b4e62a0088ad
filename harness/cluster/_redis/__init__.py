"""State on a Redis server. Needs the extra ``redis``, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.cluster._redis._link import RedisLink
else:
    __getattr__, __dir__ = lazy(extras={"coredis": "redis"}, subject="a redis:// address")

__all__ = ["RedisLink"]
