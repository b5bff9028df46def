-- Delete consumers of workers that are gone: nothing pending, and nothing read for long. A worker that is alive after
-- all is a consumer again at its next read (protocol 10, consumers).
-- KEYS    1 stream
-- ARGV    1 group  2 idle ms  3 most to delete
-- Returns how many were deleted
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
local deleted = 0
for _, consumer in ipairs(consumers) do
  local fields = {}
  for i = 1, #consumer, 2 do fields[consumer[i]] = consumer[i + 1] end
  if fields['pending'] == 0 and fields['idle'] > tonumber(ARGV[2]) and deleted < tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fields['name'])
    deleted = deleted + 1
  end
end
return deleted
