-- Limits on how many runs are at work at once (protocol 5.1, 6.4): a library, put in front of the scripts that need it.
-- KEYS    none of its own: its functions are given the base of a queue's keys, and limits by name
-- ARGV    none of its own
-- Returns nothing: the script behind it does
-- A queue's keys, all behind the `base` that its index key begins with:
--   limit:<limit>    sorted set of run ids, scored by expiry in Redis time: the places in use, and those promised
--   parked:<limit>   sorted set of run ids, scored by their turn: who waits for a place
--   limits           hash limit -> most; of limits for which somebody waits
--   limited          hash run id -> lines: home stream, message version, traceparent, then its limits
local PROMISE_MS = 30000

local function base_of(index) return string.sub(index, 1, -6) end

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- Fence, stream and id of what the index says; of a parked run fence and limit alone. All nil for anything else.
local function parked_of(named)
  if not named then return nil, nil end
  return string.match(named, '^(%d+)|parked:(.*)$')
end

local function entry_of(named)
  if not named or parked_of(named) then return nil, nil, nil end
  return string.match(named, '^(%d+)|(.*)|(%d+%-%d+)$')
end

local function lines_of(text)
  local lines = {}
  for line in string.gmatch((text or '') .. '\n', '([^\n]*)\n') do lines[#lines + 1] = line end
  return lines
end

local function is_young(epoch, now, young_ms)
  local made = redis.call('GET', epoch)
  return not made or now - made < tonumber(young_ms)
end

local function ring(base)
  redis.call('LPUSH', base .. 'wake', '1')
  redis.call('LTRIM', base .. 'wake', 0, 63)
end

-- Drop an entry from its group and its stream. Returns 1 when it was pending or in the stream, else 0.
local function drop_entry(stream, group, id, one_command)
  if one_command then
    local reply = redis.pcall('XACKDEL', stream, group, 'IDS', 1, id)
    -- -1: it was not pending, and is still in the stream if it was there. An error: by now another server, or no leave.
    if not reply.err and reply[1] ~= -1 then return 1 end
  end
  local acked = redis.pcall('XACK', stream, group, id)
  local deleted = redis.pcall('XDEL', stream, id)
  return (acked == 1 or deleted == 1) and 1 or 0
end

local function add_entry(base, stream, run, fence, version, traceparent)
  local id = redis.call('XADD', stream, '*', 'run_id', run, 'fence', fence, 'v', version, 'traceparent', traceparent)
  redis.call('HSET', base .. 'index', run, fence .. '|' .. stream .. '|' .. id)
  ring(base)
  return id
end

local function places_left(base, limit, most, now)
  local places = base .. 'limit:' .. limit
  redis.call('ZREMRANGEBYSCORE', places, '-inf', '(' .. now)
  return most - redis.call('ZCARD', places)
end

local function tidy_limit(base, limit)
  if redis.call('EXISTS', base .. 'parked:' .. limit) == 0 then redis.call('HDEL', base .. 'limits', limit) end
end

-- Move the first of a limit's waiting set back to its stream, and promise it a place, so that nobody comes before it.
-- A member of which the index says something else is a leftover and goes. Returns whether one was moved.
local function bring_back(base, limit, now)
  local waiting, moved = base .. 'parked:' .. limit, false
  while not moved do
    local run = redis.call('ZRANGE', waiting, 0, 0)[1]
    if not run then break end
    redis.call('ZREM', waiting, run)
    local fence, at = parked_of(redis.call('HGET', base .. 'index', run))
    local facts = lines_of(redis.call('HGET', base .. 'limited', run))
    if at == limit and #facts > 3 then
      redis.call('ZADD', base .. 'limit:' .. limit, now + PROMISE_MS, run)
      add_entry(base, facts[1], run, fence, facts[2], facts[3])
      moved = true
    end
  end
  tidy_limit(base, limit)
  return moved
end

-- A place of a limit was freed: it goes to the first of those who wait, unless the limit was lowered meanwhile.
local function pass_on(base, limit, now)
  local most = redis.call('HGET', base .. 'limits', limit)
  if most and places_left(base, limit, tonumber(most), now) > 0 then bring_back(base, limit, now) end
end

-- Take a run out of its limits: out of every waiting set, its places passed on. Costs a run without limits one HGET.
local function leave_limits(base, run)
  local facts = redis.call('HGET', base .. 'limited', run)
  if not facts then return end
  redis.call('HDEL', base .. 'limited', run)
  local now, limits, freed = now_ms(), lines_of(facts), {}
  for i = 4, #limits do
    if redis.call('ZREM', base .. 'parked:' .. limits[i], run) == 1 then tidy_limit(base, limits[i]) end
    if redis.call('ZREM', base .. 'limit:' .. limits[i], run) == 1 then freed[#freed + 1] = limits[i] end
  end
  for _, limit in ipairs(freed) do pass_on(base, limit, now) end
end
