"""List the limiters that processes share on a Redis server, without touching them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from harness.cluster import _redis
from harness.limits._across_processes._look import Holder, SeenLimit, SeenLimiter

_BEGINS, _ENDS = "{harness:", "}:limits:state"

_LOOK = """
local time = redis.call('TIME')
return {
  tostring(tonumber(time[1]) + tonumber(time[2]) / 1e6), cjson.encode({
    state = redis.call('HGETALL', KEYS[1]),
    members = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
    held = redis.call('HGETALL', KEYS[3]),
  }),
}
"""


async def limiters_on(address: str) -> list[SeenLimiter]:
    """Look at all limiters on the server at an address, in the order of their names.

    Args:
      address: As for `FleetLimiter`.

    Raises:
      OSError, coredis.exceptions.RedisError: if it can't be reached.
      ImportError: without the extra ``redis``.

    Checkpoint: always.

    Cancellation: changes nothing.
    """
    async with _redis.RedisLink(address) as link:
        found = []
        for key in sorted(await link.keys_like(f"{_BEGINS}*{_ENDS}")):
            tag = key.removesuffix("state")
            now, known = await link.run(_LOOK, [key, f"{tag}members", f"{tag}held"], [])
            name = unquote(key.removeprefix(_BEGINS).removesuffix(_ENDS))
            found.append(_seen(name, float(now), json.loads(known)))
        return found


def _seen(name: str, now: float, known: dict[str, Any]) -> SeenLimiter:
    state, held, until = (_paired(known[part]) for part in ("state", "held", "members"))
    shape = json.loads(state["shape"])
    places, *words = state["spec"].split()  # The limits in force, which may have been changed.
    holders = tuple(
        Holder(process=member, is_alive=float(end) > now, places=_places(held.get(member, "0")))
        for member, end in until.items()
    )
    return SeenLimiter(
        name=name,
        limits=tuple(
            SeenLimit(dimension=dimension, amount=float(amount), period=period, used=None)
            for (dimension, _, period), amount in zip(shape["rates"], words[2::9], strict=True)
        ),
        concurrent=None if places == "-1" else int(places),
        headroom=shape["headroom"],
        in_flight=sum(holder.places for holder in holders),
        paused_seconds=max(0.0, float(state.get("closed", 0)) - now),
        holders=holders,
    )


def _places(held: str) -> int:
    return int(float(held.split(maxsplit=1)[0]))


def _paired(flat: Any) -> dict[str, str]:
    # An empty list of Lua is an empty object of JSON.
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}
