-- Leave `running` for `queued`: acknowledge the entry the index names and add the new one, at once (protocol 6.7).
-- KEYS    1 index  2 wake  3 target ready stream  4 slots
-- ARGV    1 group  2 run id  3 new fence  4 message version  5 traceparent  6 slot member or ''
-- Returns the new entry's id, or the one that is there for this or a higher fence
local named = redis.call('HGET', KEYS[1], ARGV[2])
if ARGV[6] ~= '' then redis.call('ZREM', KEYS[4], ARGV[6]) end
if named then
  local fence, stream, id = string.match(named, '^(%d+)|(.*)|(%d+%-%d+)$')
  if tonumber(fence) >= tonumber(ARGV[3]) then return id end
  redis.pcall('XACK', stream, ARGV[1], id)
  redis.pcall('XDEL', stream, id)
end
local id = redis.call('XADD', KEYS[3], '*', 'run_id', ARGV[2], 'fence', ARGV[3], 'v', ARGV[4], 'traceparent', ARGV[5])
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. '|' .. KEYS[3] .. '|' .. id)
redis.call('LPUSH', KEYS[2], '1')
redis.call('LTRIM', KEYS[2], 0, 63)
return id
