-- Leave `running` for `queued`: acknowledge the entry the index names, pass on the run's places of limits, and add the
-- new entry, at once (protocol 6.7). With the library parking.lua.
-- KEYS    1 index  2 wake  3 target ready stream  4 slots
-- ARGV    1 group  2 run id  3 new fence  4 message version  5 traceparent  6 slot member or ''
-- Returns the new entry's id, or the one (or 'parked') that is there for this or a higher fence
local base, run = base_of(KEYS[1]), ARGV[2]
local named = redis.call('HGET', KEYS[1], run)
if ARGV[6] ~= '' then redis.call('ZREM', KEYS[4], ARGV[6]) end
local parked_fence = parked_of(named)
if parked_fence and tonumber(parked_fence) >= tonumber(ARGV[3]) then return 'parked' end
local fence, stream, id = entry_of(named)
if fence then
  if tonumber(fence) >= tonumber(ARGV[3]) then return id end
  redis.pcall('XACK', stream, ARGV[1], id)
  redis.pcall('XDEL', stream, id)
end
leave_limits(base, run)
return add_entry(base, KEYS[3], run, ARGV[3], ARGV[4], ARGV[5])
