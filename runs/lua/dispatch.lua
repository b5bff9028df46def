-- Put a queued run into its ready stream, unless a deliverable entry of this fence is there, or it is parked at this
-- fence (protocol 4.6). With the library parking.lua.
-- KEYS    1 index  2 wake  3 target ready stream
-- ARGV    1 run id  2 fence  3 group  4 message version  5 traceparent
-- Returns {1, entry id} when it was added, {0, entry id or 'parked'} when it was there
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
local base, named = base_of(KEYS[1]), redis.call('HGET', KEYS[1], ARGV[1])
local parked_fence, limit = parked_of(named)
if limit then
  -- Parked is present, while the waiting set says so too.
  local waits = redis.call('ZSCORE', base .. 'parked:' .. limit, ARGV[1])
  if waits and tonumber(parked_fence) >= tonumber(ARGV[2]) then return {0, 'parked'} end
  leave_limits(base, ARGV[1])
else
  local fence, stream, id = entry_of(named)
  if fence and tonumber(fence) >= tonumber(ARGV[2]) and deliverable(stream, id) then return {0, id} end
end
return {1, add_entry(base, KEYS[3], ARGV[1], ARGV[2], ARGV[4], ARGV[5])}
