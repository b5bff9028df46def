-- Take a run that is parked out of its waiting set and out of the index: it has ended, and nobody will be given it.
-- KEYS    1 index
-- ARGV    1 run id
-- Returns 1 when it was parked, else 0
local base = base_of(KEYS[1])
if not parked_of(redis.call('HGET', KEYS[1], ARGV[1])) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
leave_limits(base, ARGV[1])
return 1
