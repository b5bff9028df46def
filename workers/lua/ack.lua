-- Acknowledge an entry: out of the group, out of the stream, out of the index if that still names it (protocol 6.7),
-- and the run's places of limits passed on. With the library parking.lua.
-- KEYS    1 index  2 slots
-- ARGV    1 group  2 run id ('' for none)  3 stream  4 entry id ('' for what the index says: an entry, or parked)
--         5 slot member or ''  6 1 where the server has XACKDEL  7 with no entry id: the run's fence, or ''
-- Returns 1 when the entry was pending or in the stream (or the run parked), else 0
local base, run, stream, id = base_of(KEYS[1]), ARGV[2], ARGV[3], ARGV[4]
local named = run ~= '' and redis.call('HGET', KEYS[1], run)
if ARGV[5] ~= '' then redis.call('ZREM', KEYS[2], ARGV[5]) end
local _, at, named_id = entry_of(named)
if id == '' then
  -- Dispatched since the change that the caller tidies up after: not its entry.
  local fence = named and tonumber(string.match(named, '^(%d+)|'))
  if fence and ARGV[7] ~= '' and fence >= tonumber(ARGV[7]) then return 0 end
  if parked_of(named) then
    redis.call('HDEL', KEYS[1], run)
    leave_limits(base, run)
    return 1
  end
  stream, id = at, named_id
end
-- Named by another entry, the run is another owner's by now, and so are its places.
local is_named = at == stream and named_id == id
if is_named and named then redis.call('HDEL', KEYS[1], run) end
if run ~= '' and (is_named or not named) then leave_limits(base, run) end
if not id then return 0 end
return drop_entry(stream, ARGV[1], id, ARGV[6] == '1')
