-- Keep a limiter's state for all processes that share it: what they hold, what was charged, pauses.
--
-- One call does all that a process has to say since its last one, in this order: it reports what it
-- holds, in absolute numbers, so that a reply that got lost does no harm; it notes what has become
-- of charges, and what the provider said; and it asks for the next in its line. Each is granted for
-- a moment at most `horizon` from now. So one who asks now and then can use the limit in full, and
-- a thousand processes need no more than a call or two per grant.
--
-- The only clock is the server's. All keys are passed in, and share a hash tag:
--   1 what is known of the limiter, a hash
--   2 the processes, with the time at which their lease ends, a sorted set
--   3 what each of them holds, a hash
--   4 and on: the cells of a window, a hash from the number of a cell to what was charged in it
--
-- The rules are those of `PacedBucket`, `SlidingCap`, `Pauses` and `ProviderCount`, written again
-- because they must run where the state is; a test holds the two to the same answers.

local CELLS = 1024        -- A window is kept in so many parts, and frees each a part late.
local SLACK = 1e-6        -- Closer than this is equal, as far as the server's clock can tell.
local JUMP_SECONDS = 5    -- A clock that went back by more tells another time.
local REJOIN_SECONDS = 1  -- In this time all who were here will have said what they hold.
local LOOK_SECONDS = 0.01 -- When to look again for a place. Nobody is told.
local SLOWEST_SECONDS = 0.03 -- How long nobody of those who wait looks, at most.
local GIVEN_BACK_SECONDS = 0.1 -- The same for what is to be settled.

local at = 0
local function arg() at = at + 1; return ARGV[at] end
local function number() return tonumber(arg()) end
local function written(x) return string.format('%.6f', x) end

local time = redis.call('TIME')
local clock = tonumber(time[1]) + tonumber(time[2]) / 1e6
local member, lease, horizon = arg(), number(), number()
local stated, shape, coming = arg(), arg(), arg()

-- What is known -----------------------------------------------------------------------------------

local known = {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do known[flat[i]] = flat[i + 1] end
local function recall(name, default) return tonumber(known[name] or default) end
local function keep(name, x) known[name] = written(x) end

local fresh = not known.now or clock < recall('now') - JUMP_SECONDS
if fresh then
  for i = 1, #KEYS do redis.call('DEL', KEYS[i]) end
  known = {}
end
local now = math.max(clock, recall('now', 0))
local others = redis.call('ZCOUNT', KEYS[2], '(' .. written(clock), '+inf')
if redis.call('ZSCORE', KEYS[2], member) then others = others - 1 end

if (coming == 'join' or coming == 'back') and others > 0 and known.shape ~= shape then
  return {'differs', known.shape}
end
if coming == 'join' and others == 0 then
  -- What was charged stays charged; what the dead held is free.
  redis.call('DEL', KEYS[2], KEYS[3])
  known.sums, known.spec, known.shape = nil, stated, shape
end
if coming == 'change' or not known.spec then known.spec = stated end
if not known.shape then known.shape = shape end

local words = {}
for word in string.gmatch(known.spec, '%S+') do words[#words + 1] = word end
local places = tonumber(words[1])
local dims, windows = {}, {}
for i = 2, #words, 9 do
  local id = words[i]
  local dim = {
    id = id, kind = tonumber(words[i + 1]), rate = tonumber(words[i + 3]),
    burst = tonumber(words[i + 4]), windows = {},
  }
  -- Nobody knows what was charged before, if it isn't known: a window used up at its pace, and on
  -- top of that the burst, in advance.
  dim.level = recall(id .. ':level', dim.burst)
  dim.filled = recall(id .. ':filled', now + dim.burst / dim.rate)
  dim.remaining, dim.limit = recall(id .. ':remaining', 0), recall(id .. ':limit', 0)
  dim.heard, dim.forget = recall(id .. ':heard', 0), recall(id .. ':forget', 0)
  for j = i + 5, i + 7, 2 do
    local period = tonumber(words[j + 1])
    if period > 0 then
      local name = id .. ':' .. #dim.windows
      local window = {
        name = name, key = KEYS[4 + #windows], limit = tonumber(words[j]), period = period,
        width = period / CELLS, used = recall(name .. ':used', 0),
        oldest = recall(name .. ':oldest', 0), newest = recall(name .. ':newest', -1),
      }
      dim.windows[#dim.windows + 1] = window
      windows[#windows + 1] = window
    end
  end
  dims[#dims + 1] = dim
end

-- What processes hold: places, whether somebody waits, and what isn't settled in each dimension.
local sums = {}
for word in string.gmatch(known.sums or '', '%S+') do sums[#sums + 1] = tonumber(word) end
local function held_by(id)
  local held = {}
  for word in string.gmatch(redis.call('HGET', KEYS[3], id) or '', '%S+') do
    held[#held + 1] = tonumber(word)
  end
  return held
end
local function replace(old, new)
  for i = 1, 2 + #dims do sums[i] = (sums[i] or 0) - (old[i] or 0) + (new[i] or 0) end
end

-- Windows and buckets -----------------------------------------------------------------------------

local function cells(window, first, last)
  local names = {}
  for k = first, last do names[#names + 1] = string.format('%.0f', k) end
  return names, redis.call('HMGET', window.key, unpack(names))
end
local function ends(window, k) return (k + 1) * window.width + window.period end

local function forget(window, t)
  local gone = math.min(math.floor((t - window.period) / window.width) - 1, window.newest)
  if gone == window.newest then
    if window.used ~= 0 then redis.call('DEL', window.key) end
    window.used, window.oldest, window.newest = 0, 0, -1
    return
  end
  while window.oldest <= gone do -- Ends: each round goes on by some cells, or to the last.
    local last = math.min(window.oldest + 49, gone)
    local names, amounts = cells(window, window.oldest, last)
    for i = 1, #names do
      if amounts[i] then
        window.used = window.used - tonumber(amounts[i])
        redis.call('HDEL', window.key, names[i])
      end
    end
    window.oldest = last + 1
  end
end

local function free_in_window(window, amount, t)
  local excess = window.used + math.min(amount, window.limit) - window.limit
  local slack = window.limit * 1e-9
  if excess <= slack then return t end
  local k, some = window.oldest, 4 -- Nearly always, the first few are enough.
  while k <= window.newest do -- Ends as above.
    local last = math.min(k + some, window.newest)
    some = 50
    local _, amounts = cells(window, k, last)
    for i = k, last do
      if amounts[i - k + 1] then
        excess = excess - tonumber(amounts[i - k + 1])
        if excess <= slack then return math.max(t, ends(window, i)) end
      end
    end
    k = last + 1
  end
  return t
end

local function charge_window(window, amount, t)
  local k = math.floor(t / window.width)
  if window.newest < 0 then window.oldest, window.newest = k, k end
  window.oldest, window.newest = math.min(window.oldest, k), math.max(window.newest, k)
  redis.call('HINCRBYFLOAT', window.key, string.format('%.0f', k), written(amount))
  window.used = window.used + amount
end

local function charged_since(window, t)
  local k, sum = math.max(window.oldest, math.floor(t / window.width)), 0
  while k <= window.newest do -- Ends as above.
    local last = math.min(k + 99, window.newest)
    local _, amounts = cells(window, k, last)
    for i = 1, last - k + 1 do sum = sum + tonumber(amounts[i] or 0) end
    k = last + 1
  end
  return sum
end

-- Change a charge made at `t`; what has left its window took its amount with it.
local function adjust(window, change, t)
  if ends(window, math.floor(t / window.width)) > now then
    charge_window(window, change, t)
  elseif change > 0 then
    charge_window(window, change, now)
  end
end

local function fill(dim, t)
  if t > dim.filled then
    dim.level = math.min(dim.burst, dim.level + (t - dim.filled) * dim.rate)
    dim.filled = t
  end
end

local function left_by_count(dim, t)
  return math.min(dim.remaining + math.max(0, t - dim.heard) * dim.rate, dim.limit)
end

local function free_at(dim, amount, t)
  if amount == 0 then return t end
  fill(dim, t)
  local moment = t
  local missing = math.min(amount, dim.burst) - dim.level
  if missing > dim.rate * SLACK then moment = math.max(t, dim.filled) + missing / dim.rate end
  for _, window in ipairs(dim.windows) do
    moment = math.max(moment, free_in_window(window, amount, t))
  end
  if t < dim.forget then
    missing = math.min(amount, dim.limit) - left_by_count(dim, t)
    if missing > dim.rate * SLACK then
      moment = math.max(moment, math.min(t + missing / dim.rate, dim.forget))
    end
  end
  return moment
end

local function charge(dim, amount, t)
  if amount == 0 then return end
  fill(dim, t)
  dim.level = dim.level - amount
  dim.remaining = dim.remaining - amount
  for _, window in ipairs(dim.windows) do charge_window(window, amount, t) end
end

-- Who is here -------------------------------------------------------------------------------------

redis.call('ZREM', KEYS[2], member)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', clock)) do
  replace(held_by(id), {})
  redis.call('HDEL', KEYS[3], id)
  redis.call('ZREM', KEYS[2], id)
end
local mine = {}
for i = 1, 2 + #dims do mine[i] = number() end
replace(held_by(member), mine)

for _, window in ipairs(windows) do forget(window, now) end
for _, dim in ipairs(dims) do
  if now >= dim.forget then dim.forget = 0 end
end

-- What has happened -------------------------------------------------------------------------------

local function pause(asked, closed)
  keep('epoch', recall('epoch', 0) + 1)
  keep('asked', math.max(recall('asked', 0), now + asked))
  keep('closed', math.max(recall('closed', 0), now + closed))
  -- It ends with one request, and then the usual pace.
  local moment = recall('closed')
  for _, dim in ipairs(dims) do
    fill(dim, now)
    local kept = math.min(dim.kind == 0 and 1 or 0, dim.burst)
    dim.level = math.min(dim.level + math.max(0, moment - now) * dim.rate, kept)
    dim.filled, dim.forget = moment, 0
  end
end

local happened = {}
function happened.settled()
  local dim, change, t = dims[number()], number(), number()
  fill(dim, now)
  dim.level = math.min(dim.burst, dim.level - change)
  dim.remaining = dim.remaining - change
  for _, window in ipairs(dim.windows) do adjust(window, change, t) end
end
-- A request went out later than it was granted for.
function happened.late()
  local dim, amount, from, to = dims[number()], number(), number(), number()
  for _, window in ipairs(dim.windows) do
    adjust(window, -amount, from)
    charge_window(window, amount, math.max(to, from))
  end
end
-- What was sent while the server could not be asked.
function happened.sent()
  local dim, amount, t = dims[number()], number(), number()
  for _, window in ipairs(dim.windows) do
    if ends(window, math.floor(t / window.width)) > now then charge_window(window, amount, t) end
  end
end
function happened.paused()
  local asked, closed = number(), number()
  keep('count', recall('count', 0) + 1)
  pause(asked, closed)
end
function happened.refused()
  local seconds, epoch, draw = number(), number(), number()
  if epoch < 0 then
    local until_now = now < recall('closed', 0) and recall('asked', 0) or 0
    if seconds < 0 and until_now > now or seconds >= 0 and now + seconds <= until_now then
      return
    end
  elseif epoch ~= recall('epoch', 0) then
    return -- It was sent before the pause.
  end
  local streak = recall('streak', 0)
  if seconds < 0 then seconds = math.min(2 ^ streak, 60) end
  keep('streak', math.min(streak + 1, 10))
  keep('count', recall('count', 0) + 1)
  pause(seconds, seconds + draw * math.min(0.25 + 0.1 * seconds, 10))
end
function happened.through()
  if number() == recall('epoch', 0) then keep('streak', 0) end
end
function happened.quota()
  local seconds, reset_known = number(), arg()
  keep('quota', now + seconds)
  known.reset_known = reset_known
  pause(0, seconds)
end
function happened.heard()
  local dim, remaining, limit, seconds = dims[number()], number(), number(), number()
  local index = 2
  for i, one in ipairs(dims) do if one == dim then index = i + 2 end end
  -- What was charged and not answered yet, the provider may not have counted. A request is counted
  -- when it arrives, and one that isn't settled after some seconds arrived long ago.
  local first = dim.windows[1]
  local unsettled = sums[index]
  if dim.kind == 0 then unsettled = math.min(unsettled, charged_since(first, now - 5)) end
  remaining = remaining - unsettled
  if remaining >= first.limit - first.used then
    dim.forget = 0 -- Our own count is the stricter one.
  else
    dim.remaining, dim.limit, dim.heard, dim.forget = remaining, limit, now, now + seconds
  end
end

-- A process that kept a share of the limit by itself, because the server was gone, is back.
if coming == 'back' then
  for _, dim in ipairs(dims) do
    fill(dim, now)
    dim.level, dim.filled = math.min(dim.level, 0), math.max(dim.filled, now)
  end
  if fresh then keep('settling', now + REJOIN_SECONDS) end
end

local todo = number()
for _ = 1, todo do happened[arg()]() end

-- What is asked for -------------------------------------------------------------------------------

local asked = number()
local begin = math.max(recall('closed', 0), recall('last', 0), now)
local waiting = math.max(1, sums[2])
local moments = {}
local wait = asked == 0 and lease / 3 or 0
if asked > 0 and places >= 0 and recall('settling', 0) > now then
  asked, wait = 0, recall('settling') - now
end
for i = 1, asked do
  if places >= 0 and sums[1] >= places then
    wait = LOOK_SECONDS * waiting
    break
  end
  local moment, each, amounts = begin, 0, {}
  for j, dim in ipairs(dims) do
    amounts[j] = number()
    moment = math.max(moment, free_at(dim, amounts[j], begin))
    each = math.max(each, amounts[j] / dim.rate)
  end
  -- All who wait look so often that somebody is always in time, and no oftener.
  local some = math.max(1, math.min(asked, horizon / each / 2)) -- What a turn is for.
  local turn = waiting > 1 and waiting * math.min(some * each / 3, SLOWEST_SECONDS) or 0
  if moment > now + horizon then
    wait = math.max(moment - now - horizon / 2, turn)
    if begin <= now + horizon then -- Others may give something back before. Nobody is told.
      wait = math.min(wait, math.max(GIVEN_BACK_SECONDS, turn))
    end
    break
  end
  if waiting > 1 and moment > now and i > some then
    wait = math.max(horizon / 2, turn)
    break
  end
  for j, dim in ipairs(dims) do
    charge(dim, amounts[j], moment)
    mine[2 + j], sums[2 + j] = mine[2 + j] + amounts[j], sums[2 + j] + amounts[j]
  end
  mine[1], sums[1] = mine[1] + 1, sums[1] + 1
  begin = moment
  keep('last', moment)
  moments[#moments + 1] = written(moment)
end
wait = math.min(wait, lease / 3)

-- What is known now -------------------------------------------------------------------------------

if coming == 'leave' then
  replace(mine, {})
  redis.call('HDEL', KEYS[3], member)
else
  redis.call('ZADD', KEYS[2], clock + lease, member)
  redis.call('HSET', KEYS[3], member, table.concat(mine, ' '))
end
known.sums = table.concat(sums, ' ')
keep('now', now)
local longest = lease
local reply = {
  'ok', written(now), known.spec, fresh and '1' or '0', tostring(redis.call('ZCARD', KEYS[2])),
  tostring(sums[1]), written(wait), written(recall('epoch', 0)), written(recall('count', 0)),
  written(recall('asked', 0)), written(recall('closed', 0)), written(recall('quota', 0)),
  known.reset_known or '0', written(recall('streak', 0)), tostring(#moments),
}
for _, moment in ipairs(moments) do reply[#reply + 1] = moment end
for i, dim in ipairs(dims) do
  keep(dim.id .. ':level', dim.level)
  keep(dim.id .. ':filled', dim.filled)
  keep(dim.id .. ':remaining', dim.remaining)
  keep(dim.id .. ':limit', dim.limit)
  keep(dim.id .. ':heard', dim.heard)
  keep(dim.id .. ':forget', dim.forget)
  for _, window in ipairs(dim.windows) do
    keep(window.name .. ':used', window.used)
    keep(window.name .. ':oldest', window.oldest)
    keep(window.name .. ':newest', window.newest)
    longest = math.max(longest, window.period)
  end
  fill(dim, now)
  local counted = dim.forget > now and math.max(0, left_by_count(dim, now)) or -1
  for _, x in ipairs({dim.windows[1].used, dim.level, sums[2 + i], counted}) do
    reply[#reply + 1] = written(x)
  end
end
local change = {}
for name, value in pairs(known) do
  change[#change + 1] = name
  change[#change + 1] = value
end
redis.call('HSET', KEYS[1], unpack(change))
for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], math.ceil((2 * longest + 60) * 1000)) end
return reply
