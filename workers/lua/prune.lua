-- Delete what can never be delivered: entries at or below the group's last-delivered id that nobody has pending, and
-- pending ids whose entry was trimmed (protocol 10, dead entries).
-- KEYS    1 ready stream
-- ARGV    1 group  2 start id of this step  3 entries a step  4 start id of the pending step
-- Returns {next start id ('-' when the end was reached), entries deleted, pending removed, next pending start id}
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then return {'-', 0, 0, '-'} end
local delivered
for _, group in ipairs(groups) do
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  if fields['name'] == ARGV[1] then delivered = fields['last-delivered-id'] end
end
if not delivered or delivered == '0-0' then return {'-', 0, 0, '-'} end
local deleted, removed, last, last_pending = 0, 0, '-', '-'
local step = tonumber(ARGV[3])
local entries = redis.call('XRANGE', KEYS[1], ARGV[2], delivered, 'COUNT', step)
for _, entry in ipairs(entries) do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1) == 0 then
    deleted = deleted + redis.call('XDEL', KEYS[1], entry[1])
  end
end
if #entries == step then last = '(' .. entries[#entries][1] end
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], '+', step)
for _, item in ipairs(pending) do
  if #redis.call('XRANGE', KEYS[1], item[1], item[1]) == 0 then
    removed = removed + redis.call('XACK', KEYS[1], ARGV[1], item[1])
  end
end
if #pending == step then last_pending = '(' .. pending[#pending][1] end
return {last, deleted, removed, last_pending}
