-- Append events to a run's log (protocol 3.3). The only writer of these streams.
-- KEYS    1 log
-- ARGV    1 fence of the caller  2 opening 0|1  3 ttl ms  4 cap  5 wake channels, joined by a newline
--         then per event: id `<fence>-<seq>`, prev (empty: the last id found), body (JSON)
-- Returns {"OK", last id} | {"FENCED", last id} | {"GAP", last id} | {"NOKEY", ""}
local log, fence, opening = KEYS[1], tonumber(ARGV[1]), ARGV[2] == '1'
local function parts(id)
  local f, s = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(f), tonumber(s)
end
local tail = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
local last, lf, ls = '', 0, 0
if #tail > 0 then
  last = tail[1][1]
  lf, ls = parts(last)
elseif not opening then
  return {'NOKEY', ''}
end
if lf > fence then return {'FENCED', last} end
-- Look before writing: a refused batch leaves nothing behind.
local f, s = lf, ls
for i = 6, #ARGV, 3 do
  local ef, es = parts(ARGV[i])
  if ef > f or (ef == f and es > s) then
    local follows = (ef == f and es == s + 1) or (ef == f + 1 and es == 1)
    if not follows and not opening then return {'GAP', last} end
    f, s = ef, es
  end
end
local wrote = false
for i = 6, #ARGV, 3 do
  local ef, es = parts(ARGV[i])
  if ef > lf or (ef == lf and es > ls) then
    local prev = ARGV[i + 1]
    if es == 1 and prev == '' then prev = last end
    redis.call('XADD', log, 'MAXLEN', ARGV[4], ARGV[i], 'e', ARGV[i + 2], 'p', prev)
    last, lf, ls, wrote = ARGV[i], ef, es, true
  end
end
redis.call('PEXPIRE', log, ARGV[3])
if wrote then
  for channel in string.gmatch(ARGV[5], '[^\n]+') do redis.call('PUBLISH', channel, last) end
end
return {'OK', last}
