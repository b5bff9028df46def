-- Take or renew the sweeper's lease. One without an end, or with one too far away, gets the usual one: whoever wrote it
-- so may be dead (protocol 10).
-- KEYS    1 lease
-- ARGV    1 who asks  2 lease ms
-- Returns {1 if it is theirs now else 0, the holder, ms left}
local holder = redis.call('GET', KEYS[1])
if not holder or holder == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, ARGV[1], tonumber(ARGV[2])}
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 or left > tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
return {0, holder, left}
