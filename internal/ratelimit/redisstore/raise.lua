-- Makes sure that counters show at least what is known to have been used: adds what is missing, never more. The maths is
-- that of internal/ratelimit/README.md ("Raise"). It is seldom used, so it is sent as a text each time (EVAL): nothing has to
-- be loaded when a server has just come back.
--
--   KEYS    the counters of all charges, in order. Nothing else is touched.
--   ARGV    1: the latest believable time in us, 0 for unknown; then per charge the number of its counters, and per counter
--           algorithm (as in charge.lua), quota, window in us (a bucket: E), U of a bucket (else 0), and what is known,
--           youngest first, as age:units pairs with ages in us, separated by commas.
--   reply   the time in us, then per charge a status as in charge.lua.
--
-- It never raises an error: every call is a pcall. The first write is a ZADD or SET, which a full, read-only or failing
-- server refuses; such a refusal before anything was written is the whole reply.
local call = redis.pcall
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local dirty = false -- whether this script has written anything

-- What was used less than `most` us ago.
local function since(known, most)
  local sum = 0
  for _, p in ipairs(known) do
    if p.age < most then sum = sum + p.units end
  end
  return sum
end

-- Each of these returns nil, or why it failed: a status, or the error of the server.

-- What is missing becomes entries of a score, cum and weight, which charge.lua reads like its own.
local function raise_log(key, known, _, window)
  local used, last, cum, wrong = 0, 0, 0, false
  local r = call('ZRANGE', key, '-1', '-1')
  if r.err then return r end
  if r[1] then
    if #r[1] < 24 then return 2 end
    last, cum = struct.unpack('<dd', r[1])
    if last > now + window then -- written under a wrong clock: reads as empty
      last, cum, wrong = 0, 0, true
    elseif last > now - window then
      r = call('ZRANGEBYSCORE', key, string.format('(%.0f', now - window), '+inf', 'LIMIT', '0', '1')
      if #(r[1] or '') < 24 then return 2 end
      local _, at, own = struct.unpack('<ddd', r[1])
      used = (cum - at + own) % 4503599627370496
    end
  end
  local missing = since(known, window) - used
  if missing <= 0 then return end
  local added = {}
  for _, p in ipairs(known) do
    local units = math.min(p.units, missing)
    if units > 0 and p.age < window then
      table.insert(added, { age = p.age, units = units })
      missing = missing - units
    end
  end
  for i = #added, 1, -1 do
    last = math.max(now - added[i].age, last + 1)
    cum = (cum + added[i].units) % 4503599627370496
    local score, member = string.format('%.0f', last), struct.pack('<ddd', last, cum, added[i].units)
    r = call('ZADD', key, score, member)
    if type(r) == 'table' then return r end
    dirty = true
    if wrong then -- the whole log is replaced, after a ZADD has shown that the server takes writes
      call('UNLINK', key)
      call('ZADD', key, score, member)
      wrong = false
    end
  end
  call('PEXPIRE', key, math.ceil((last - now + window + 2 * math.max(1000, math.floor(window / 900))) / 1000))
end

local function raise_windows(key, known, _, window, fixed)
  local function weighted(prev, e) return math.ceil(prev * ((window - e) / window)) end

  local start, prev, cur = now - now % window, 0, 0
  local r = call('GET', key)
  if type(r) == 'table' then return r end
  if r then
    local was, before, count
    if fixed then
      was, count = string.match(r, '^F:(%d+):(%d+)$')
      before = 0
    else
      was, before, count = string.match(r, '^S:(%d+):(%d+):(%d+)$')
    end
    if not was then return 2 end
    was = was + 0
    if was <= now + window and start <= was then
      start, prev, cur = was, before + 0, count + 0
    elseif was < start and start - was == window and not fixed then
      prev = count + 0
    end
  end
  local e = math.max(0, now - start)
  local known_cur, known_prev = since(known, e + 1), 0
  if not fixed then known_prev = since(known, e + window + 1) - known_cur end
  local want = weighted(known_prev, e) + known_cur
  local missing = want - (weighted(prev, e) + cur)
  if missing <= 0 then return end
  if known_prev > prev then
    prev = math.min(known_prev, prev + math.floor(missing * window / (window - e)))
  end
  cur = cur + math.max(0, want - (weighted(prev, e) + cur))
  local value = fixed and string.format('F:%.0f:%.0f', start, cur) or string.format('S:%.0f:%.0f:%.0f', start, prev, cur)
  local ends = start + (fixed and window or 2 * window)
  r = call('SET', key, value, 'PX', math.ceil((ends - now) / 1000) + 1000)
  if r.err then return r end
  dirty = true
end

local function raise_bucket(key, known, quota, every, refill, leaky)
  local want = 0 -- the level that is left of what is known
  for i = #known, 1, -1 do
    local younger = i > 1 and known[i - 1].age or 0
    want = want + known[i].units
    want = math.max(0, want - (known[i].age - younger) * refill / every)
  end
  want = math.min(quota, want)

  -- A clock that jumped forward refills no more than about a minute.
  local ts = tonumber(ARGV[1])
  if ts == 0 or ts > now then ts = now end
  local level = 0
  local r = call('GET', key)
  if type(r) == 'table' then return r end
  if r then
    local tag, was, stored = string.match(r, '^([TL]):(%d+):(%S+)$')
    was, stored = tonumber(was), tonumber(stored)
    if not (was and stored) or tag ~= (leaky and 'L' or 'T') then return 2 end
    level = stored
    if was <= now + 60000000 then
      if was >= ts then
        ts = was
      else
        level = math.max(0, level - (ts - was) * refill / every)
      end
    end
  end
  if want <= level then return end
  local whole = math.max(0, ts - now) + math.min(316224000000000, math.ceil(want * every / refill))
  local value = string.format(leaky and 'L:%.0f:%.17g' or 'T:%.0f:%.17g', ts, want)
  r = call('SET', key, value, 'PX', math.ceil(whole / 1000) + 120000)
  if r.err then return r end
  dirty = true
end

local function raise(key, arg)
  local algorithm, quota, span, refill = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
  local known = {}
  for age, units in string.gmatch(ARGV[arg + 4], '(%d+):(%d+)') do
    table.insert(known, { age = tonumber(age), units = tonumber(units) })
  end
  if algorithm == 5 then return raise_log(key, known, quota, span) end
  if algorithm >= 3 then return raise_windows(key, known, quota, span, algorithm == 3) end
  return raise_bucket(key, known, quota, span, refill, algorithm == 2)
end

local reply, arg, key, args = { now }, 2, 0, #ARGV
while arg <= args do
  local status = 0
  local counters = tonumber(ARGV[arg])
  arg = arg + 1
  for _ = 1, counters do
    key = key + 1
    local failed = raise(KEYS[key], arg)
    arg = arg + 5
    if type(failed) == 'table' then
      if string.match(failed.err, '^WRONGTYPE') then
        failed = 1
      elseif dirty then
        failed = 3
      else
        return failed
      end
    end
    status = math.max(status, failed or 0)
  end
  table.insert(reply, status)
end
return reply
