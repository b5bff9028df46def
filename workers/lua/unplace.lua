-- Give back the places of a run that was not claimed after all, if its entry is still the one the index names: then
-- nobody else has a part in them. With the library parking.lua.
-- KEYS    1 index
-- ARGV    1 run id  2 stream  3 entry id
-- Returns 1 when the entry is named, else 0
local _, at, id = entry_of(redis.call('HGET', KEYS[1], ARGV[1]))
if at ~= ARGV[2] or id ~= ARGV[3] then return 0 end
leave_limits(base_of(KEYS[1]), ARGV[1])
return 1
