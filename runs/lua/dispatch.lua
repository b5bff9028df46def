-- Put a queued run into its ready stream, unless a deliverable entry of this fence is there (protocol 4.6).
-- KEYS    1 index  2 wake  3 target ready stream
-- ARGV    1 run id  2 fence  3 group  4 message version  5 traceparent
-- Returns {1, entry id} when it was added, {0, entry id} when it was there
local function parts(id)
  local a, b = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(a), tonumber(b)
end
local function deliverable(stream, id)
  if #redis.call('XRANGE', stream, id, id) == 0 then return false end
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  local delivered = '0-0'
  if not groups.err then
    for _, group in ipairs(groups) do
      local fields = {}
      for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
      if fields['name'] == ARGV[3] then delivered = fields['last-delivered-id'] end
    end
  end
  local a, b = parts(id)
  local x, y = parts(delivered)
  if a > x or (a == x and b > y) then return true end
  local pending = redis.pcall('XPENDING', stream, ARGV[3], id, id, 1)
  return not pending.err and #pending > 0
end
local named = redis.call('HGET', KEYS[1], ARGV[1])
if named then
  local fence, stream, id = string.match(named, '^(%d+)|(.*)|(%d+%-%d+)$')
  if fence and tonumber(fence) >= tonumber(ARGV[2]) and deliverable(stream, id) then return {0, id} end
end
local id = redis.call('XADD', KEYS[3], '*', 'run_id', ARGV[1], 'fence', ARGV[2], 'v', ARGV[4], 'traceparent', ARGV[5])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '|' .. KEYS[3] .. '|' .. id)
redis.call('LPUSH', KEYS[2], '1')
redis.call('LTRIM', KEYS[2], 0, 63)
return {1, id}
