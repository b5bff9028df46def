-- Give a run a place of each of its limits, or park it at the first that has none (protocol 6.4): then its entry is
-- acknowledged and the index says so. With the library parking.lua.
-- KEYS    1 index  2 slots  3 epoch
-- ARGV    1 group  2 run id  3 fence of the entry  4 its stream  5 its id  6 slot member or ''
--         7 1 where the server has XACKDEL  8 place ms  9 young ms  10 turn  11 home stream  12 message version
--         13 traceparent  then per limit: its name, how many it lets be at work
-- Returns {'placed', ''} | {'parked', limit} | {'stale', ''}: the index names a higher fence; acknowledged, too
local base, run, fence = base_of(KEYS[1]), ARGV[2], ARGV[3]
local now, limits, turn = now_ms(), {}, tonumber(ARGV[10])
for i = 14, #ARGV, 2 do limits[#limits + 1] = {name = ARGV[i], most = tonumber(ARGV[i + 1])} end
local named = redis.call('HGET', KEYS[1], run)
local known = parked_of(named) or entry_of(named)
local function give_up_entry()
  drop_entry(ARGV[4], ARGV[1], ARGV[5], ARGV[7] == '1')
  if ARGV[6] ~= '' then redis.call('ZREM', KEYS[2], ARGV[6]) end
end
if known and tonumber(known) > tonumber(fence) then
  give_up_entry()
  return {'stale', ''}
end
-- A server that came back empty knows of no place in use: none is given until all owners had a beat to say so.
local young = is_young(KEYS[3], now, ARGV[9])
local function comes_first(limit)
  local first = redis.call('ZRANGE', base .. 'parked:' .. limit, 0, 0, 'WITHSCORES')
  return first[1] and first[1] ~= run and tonumber(first[2]) <= turn
end
local function has_place(limit)
  local left = places_left(base, limit.name, limit.most, now)
  if redis.call('ZSCORE', base .. 'limit:' .. limit.name, run) then return true end
  if young then return false end
  -- A place that nobody freed, such as a dead owner's, goes to those whose turn comes before.
  while left > 0 and comes_first(limit.name) do
    if bring_back(base, limit.name, now) then left = left - 1 end
  end
  return left > 0
end
local full
for _, limit in ipairs(limits) do
  if not has_place(limit) then
    full = limit
    break
  end
end
local mine, freed = {}, {}
for _, limit in ipairs(limits) do mine[limit.name] = not full end
local before = lines_of(redis.call('HGET', base .. 'limited', run))
for i = 4, #before do mine[before[i]] = mine[before[i]] or false end
local facts = {ARGV[11], ARGV[12], ARGV[13]}
for _, limit in ipairs(limits) do facts[#facts + 1] = limit.name end
redis.call('HSET', base .. 'limited', run, table.concat(facts, '\n'))
for name, has in pairs(mine) do
  if not (full and name == full.name) then
    if redis.call('ZREM', base .. 'parked:' .. name, run) == 1 then tidy_limit(base, name) end
  end
  if has then
    redis.call('ZADD', base .. 'limit:' .. name, now + tonumber(ARGV[8]), run)
  elseif redis.call('ZREM', base .. 'limit:' .. name, run) == 1 then
    freed[#freed + 1] = name
  end
end
if full then
  redis.call('ZADD', base .. 'parked:' .. full.name, turn, run)
  redis.call('HSET', base .. 'limits', full.name, full.most)
  redis.call('HSET', KEYS[1], run, fence .. '|parked:' .. full.name)
  give_up_entry()
else
  redis.call('HSET', KEYS[1], run, fence .. '|' .. ARGV[4] .. '|' .. ARGV[5])
end
for _, name in ipairs(freed) do pass_on(base, name, now) end
return {full and 'parked' or 'placed', full and full.name or ''}
