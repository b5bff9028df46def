-- Acknowledge an entry: out of the group, out of the stream, out of the index if that still names it (protocol 6.7).
-- KEYS    1 index  2 slots
-- ARGV    1 group  2 run id ('' for none)  3 stream  4 entry id ('' for the one the index names)  5 slot member or ''
-- Returns 1 when an entry was removed, else 0
local stream, id = ARGV[3], ARGV[4]
local named = ARGV[2] ~= '' and redis.call('HGET', KEYS[1], ARGV[2])
if ARGV[5] ~= '' then redis.call('ZREM', KEYS[2], ARGV[5]) end
local at, named_id
if named then at, named_id = string.match(named, '^%d+|(.*)|(%d+%-%d+)$') end
if id == '' then
  if not at then return 0 end
  stream, id = at, named_id
end
redis.pcall('XACK', stream, ARGV[1], id)
local removed = redis.pcall('XDEL', stream, id)
if at == stream and named_id == id then redis.call('HDEL', KEYS[1], ARGV[2]) end
return type(removed) == 'number' and removed or 0
