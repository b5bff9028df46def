-- Drop a member of a waiting set that does not wait any more, unless the index says something new of it by now.
-- With the library parking.lua.
-- KEYS    1 index
-- ARGV    1 limit  2 member  3 what the index said of it ('' for nothing)
-- Returns 1 when it was dropped, else 0
local base = base_of(KEYS[1])
local named = redis.call('HGET', KEYS[1], ARGV[2]) or ''
if named ~= ARGV[3] then return 0 end
local _, limit = parked_of(named)
if limit == ARGV[1] then
  redis.call('HDEL', KEYS[1], ARGV[2])
  leave_limits(base, ARGV[2])
end
local dropped = redis.call('ZREM', base .. 'parked:' .. ARGV[1], ARGV[2])
tidy_limit(base, ARGV[1])
return (limit == ARGV[1] or dropped == 1) and 1 or 0
