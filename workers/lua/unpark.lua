-- Bring as many back from a limit's waiting set as it has free places, the first in turn first (protocol 10, parked).
-- With the library parking.lua.
-- KEYS    1 index  2 epoch
-- ARGV    1 limit  2 how many it lets be at work ('' for any number)  3 young ms  4 most to bring back
-- Returns how many were brought back
local base, now, moved = base_of(KEYS[1]), now_ms(), 0
if redis.call('EXISTS', base .. 'parked:' .. ARGV[1]) == 0 then
  tidy_limit(base, ARGV[1])
  return 0
end
if ARGV[2] ~= '' then redis.call('HSET', base .. 'limits', ARGV[1], ARGV[2]) end
if is_young(KEYS[2], now, ARGV[3]) then return 0 end
while moved < tonumber(ARGV[4]) do
  if ARGV[2] ~= '' and places_left(base, ARGV[1], tonumber(ARGV[2]), now) <= 0 then break end
  if not bring_back(base, ARGV[1], now) then break end
  moved = moved + 1
end
return moved
