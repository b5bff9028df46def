-- Take work of one queue: slots, then stale entries, then new ones in strict order (protocol 6.1, 6.2).
-- KEYS    1 slots  2 epoch  3.. ready streams, most urgent first
-- ARGV    1 group  2 consumer  3 slot limit (0: off)  4 slot ms  5 stale ms  6 young ms  7 places wanted n
--         8 .. 7+n the places, as slot members   then one XAUTOCLAIM cursor per stream
-- Returns {places granted, entries {stream, id, fields, deliveries}, cursors}
local group, consumer, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local wanted = tonumber(ARGV[7])
local cursors, granted, entries = {}, {}, {}
for i = 3, #KEYS do cursors[i - 2] = ARGV[7 + wanted + i - 2] end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if limit > 0 then
  -- A server that came back empty knows of no slot in use: nothing is granted until all owners had a beat to say so.
  local made = redis.call('GET', KEYS[2])
  if not made or now - tonumber(made) < tonumber(ARGV[6]) then return {granted, entries, cursors} end
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
  local free = limit - redis.call('ZCARD', KEYS[1])
  for i = 1, wanted do
    if #granted < free then
      granted[#granted + 1] = ARGV[7 + i]
      redis.call('ZADD', KEYS[1], now + tonumber(ARGV[4]), ARGV[7 + i])
    end
  end
else
  for i = 1, wanted do granted[i] = ARGV[7 + i] end
end
if #granted == 0 then return {granted, entries, cursors} end
local function with_group(stream, command)
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'NOGROUP') then error(reply.err) end
    redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
    reply = redis.call(unpack(command))
  end
  return reply
end
local function deliveries(stream, id)
  local found = redis.call('XPENDING', stream, group, id, id, 1)
  return found[1] and found[1][4] or 1
end
for i = 3, #KEYS do
  local stream = KEYS[i]
  if #entries >= #granted then break end
  for _ = 1, 8 do
    local left = #granted - #entries
    local reply = with_group(stream,
      {'XAUTOCLAIM', stream, group, consumer, ARGV[5], cursors[i - 2], 'COUNT', left})
    cursors[i - 2] = reply[1]
    local found = 0
    for _, entry in ipairs(reply[2]) do
      -- 6.2 answers nil for an entry that was trimmed while it was pending; the sweeper removes those.
      if entry and entry[2] then
        entries[#entries + 1] = {stream, entry[1], entry[2], deliveries(stream, entry[1])}
        found = found + 1
      end
    end
    if found > 0 or cursors[i - 2] == '0-0' then break end
  end
end
for i = 3, #KEYS do
  local left = #granted - #entries
  if left <= 0 then break end
  local reply = with_group(KEYS[i],
    {'XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', KEYS[i], '>'})
  if reply then
    for _, entry in ipairs(reply[1][2]) do
      if entry[2] then entries[#entries + 1] = {KEYS[i], entry[1], entry[2], 1} end
    end
  end
end
while #granted > #entries do
  if limit > 0 then redis.call('ZREM', KEYS[1], granted[#granted]) end
  granted[#granted] = nil
end
return {granted, entries, cursors}
