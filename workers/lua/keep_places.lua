-- Keep the places of a run for longer; puts them in again after a loss of Redis (protocol 6.2).
-- KEYS    1 limited  2.. places of each of its limits
-- ARGV    1 run id  2 place ms  3 what `limited` says of the run
-- Returns how many places were kept
local clock = redis.call('TIME')
local over = clock[1] * 1000 + math.floor(clock[2] / 1000) + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
for i = 2, #KEYS do redis.call('ZADD', KEYS[i], over, ARGV[1]) end
return #KEYS - 1
