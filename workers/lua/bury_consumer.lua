-- What is left of a dead worker in one queue: its slots are freed, what it has pending is made old so that the next
-- take of anybody gives it out, and a consumer without anything pending is deleted (protocol 8.4).
-- KEYS    1 wake  2 slots  3.. streams
-- ARGV    1 group  2 consumer  3 idle ms to give to what is pending
-- Returns {entries still pending, slots freed}
local group, consumer, mine = ARGV[1], ARGV[2], ARGV[2] .. '/'
local freed, left = 0, 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if string.sub(member, 1, #mine) == mine then freed = freed + redis.call('ZREM', KEYS[2], member) end
end
for i = 3, #KEYS do
  local pending = redis.pcall('XPENDING', KEYS[i], group, '-', '+', 5000, consumer)
  if not pending.err then
    for _, item in ipairs(pending) do
      redis.call('XCLAIM', KEYS[i], group, consumer, 0, item[1], 'IDLE', ARGV[3], 'JUSTID')
    end
    if #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[i], group, consumer) end
    left = left + #pending
  end
end
if left > 0 then
  redis.call('LPUSH', KEYS[1], '1')
  redis.call('LTRIM', KEYS[1], 0, 63)
end
return {left, freed}
