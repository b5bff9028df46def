-- Drop the ready entry that the index names for a run, if its fence is below the row's: nobody can claim it any more.
-- With the library parking.lua.
-- KEYS    1 index
-- ARGV    1 run id  2 fence of the row  3 group
-- Returns 1 when one was dropped, else 0; a parked run is left to dispatch.lua, which takes it out of its limits
local fence, stream, id = entry_of(redis.call('HGET', KEYS[1], ARGV[1]))
if not fence or tonumber(fence) >= tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return drop_entry(stream, ARGV[3], id, false)
