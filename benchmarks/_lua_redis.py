"""Run a Redis script without a server, on a clock that the caller sets.

The script is the real one, run by the version of Lua that Redis has in it: LuaJIT is faster, but
has been seen to answer differently. What the script calls, the few commands on hashes and sorted
sets, is written here in Lua too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import trio
from lupa import lua51  # type: ignore[import-untyped]

_COMMANDS = """
local data, expires = {}, {}
seconds = 0
redis = {}
calls = 0
local function alive(key)
  if expires[key] and expires[key] <= seconds then data[key], expires[key] = nil, nil end
  return data[key]
end
local function table_at(key)
  if not alive(key) then data[key] = {} end
  return data[key]
end
local function text(x) return type(x) == 'number' and string.format('%.17g', x) or x end
local c = {}
function c.TIME()
  local whole = math.floor(seconds)
  return {string.format('%.0f', whole), string.format('%.0f', (seconds - whole) * 1e6)}
end
function c.DEL(...)
  local count = 0
  for _, key in ipairs({...}) do
    if alive(key) then count = count + 1 end
    data[key], expires[key] = nil, nil
  end
  return count
end
function c.GET(key) return alive(key) or false end
function c.SET(key, value, _, milliseconds)
  data[key], expires[key] = text(value), milliseconds and seconds + milliseconds / 1000
end
function c.HGETALL(key)
  local flat = {}
  for name, value in pairs(alive(key) or {}) do flat[#flat + 1] = name; flat[#flat + 1] = value end
  return flat
end
function c.HGET(key, name) return (alive(key) or {})[name] or false end
function c.HMGET(key, ...)
  local from, values = alive(key) or {}, {}
  for i, name in ipairs({...}) do values[i] = from[name] or false end
  return values
end
function c.HSET(key, ...)
  local to, all = table_at(key), {...}
  for i = 1, #all, 2 do to[text(all[i])] = text(all[i + 1]) end
end
function c.HDEL(key, name) if alive(key) then data[key][name] = nil end end
function c.HINCRBYFLOAT(key, name, by)
  local to = table_at(key)
  to[name] = text((tonumber(to[name]) or 0) + tonumber(by))
end
function c.ZADD(key, score, name) table_at(key)[name] = tonumber(score) end
function c.ZREM(key, name) if alive(key) then data[key][name] = nil end end
function c.ZSCORE(key, name)
  local score = (alive(key) or {})[name]
  return score and text(score) or false
end
function c.ZCARD(key)
  local count = 0
  for _ in pairs(alive(key) or {}) do count = count + 1 end
  return count
end
function c.ZCOUNT(key, above)
  local count, least = 0, tonumber((string.gsub(above, '%(', '')))
  for _, score in pairs(alive(key) or {}) do if score > least then count = count + 1 end end
  return count
end
function c.ZRANGEBYSCORE(key, _, most)
  local names = {}
  for name, score in pairs(alive(key) or {}) do
    if score <= tonumber(most) then names[#names + 1] = name end
  end
  return names
end
function c.PEXPIRE(key, milliseconds)
  if alive(key) then expires[key] = seconds + milliseconds / 1000 end
end
function redis.call(name, ...)
  return c[name](...)
end
-- What is kept now, and put it back.
function kept()
  local copy = {}
  for key, value in pairs(data) do
    copy[key] = value
    if type(value) == 'table' then
      copy[key] = {}
      for name, one in pairs(value) do copy[key][name] = one end
    end
  end
  return copy
end
function put_back(copy) data = copy end
function all_keys()
  local names = {}
  for key in pairs(data) do names[#names + 1] = key end
  return table.concat(names, ' ')
end
function run(script, now, keys, arguments)
  seconds = now
  KEYS, ARGV = {}, {}
  for i, key in python.enumerate(keys) do KEYS[i + 1] = key end
  for i, one in python.enumerate(arguments) do ARGV[i + 1] = one end
  calls = calls + 1
  return table.concat(script(), '\\n')
end
"""


class LuaRedis:
    """What a server keeps, for scripts that return lists of strings.

    Args:
      clock: What the scripts are told by ``TIME``, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._scripts: dict[str, Any] = {}
        self.calls = 0
        """How many scripts have run."""
        self.is_down = False
        """Whether nobody can reach it."""
        self.clear()

    def clear(self) -> None:
        """Forget all keys."""
        self._lua = lua51.LuaRuntime(unpack_returned_tuples=True)
        self._scripts.clear()
        self._lua.execute(_COMMANDS)
        self._run = self._lua.globals().run

    def snapshot(self) -> Callable[[], None]:
        """Return a function that makes it know again what it knows now, and no more."""
        lua = self._lua.globals()
        return partial(lua.put_back, lua.kept())

    def keys(self) -> list[str]:
        """Return the names of all keys."""
        return str(self._lua.globals().all_keys()).split()

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """Run a script, and return what it returns."""
        if script not in self._scripts:
            self._scripts[script] = self._lua.eval(f"function() {script} end")
        self.calls += 1
        said: str = self._run(self._scripts[script], self._clock(), keys, arguments)
        return said.split("\n")


class LuaLink:
    """A connection to a `LuaRedis`, with a network between.

    Args:
      redis: The server.
      delay_seconds: How long it takes there, and again back; asked for each way.
    """

    def __init__(self, redis: LuaRedis, delay_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._redis = redis
        self._delay_seconds = delay_seconds

    async def __aenter__(self) -> Self:
        await self._go()
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str]) -> list[str]:
        await self._go()
        said = self._redis.run(script, keys, arguments)
        await self._go()
        return said

    async def _go(self) -> None:
        await trio.sleep(self._delay_seconds())
        if self._redis.is_down:
            raise ConnectionError("the server is down")
