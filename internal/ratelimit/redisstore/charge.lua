-- Settles a batch of charges, one after the other, on the server's own clock. The maths, and the order of operations on
-- doubles, are those of internal/ratelimit/README.md; storetest compares the two.
--
--   KEYS    the counters of all charges, in order. Nothing else is touched.
--   ARGV    1: the latest believable time in us, 0 for unknown (see guard.go)
--           2: the charges, as bytes, numbers with the high byte first: per charge its kind (1 byte; 0 take, 1 peek, 2
--           refund), how many counters it has (2) and how many hits (5), then per counter which of the limits it has (2)
--           then per limit five numbers: algorithm + 8 if shadow, quota, units per hit, window in us, 0; a bucket has E and
--           U in the place of the last two (U units are refilled every E us). Charges of one plan share their limits.
--   reply   integers: the time in us; then per charge how many hits it admits, or, negative, why it failed; if it did not,
--           per counter used, us until one more hit fits (-1: never), us until whole, hits charged, and of a leaky bucket
--           also its delay and step.
--   failed  -1 a key of another type, -2 a value that is no counter, -3 a write refused half way.
--
-- It never raises: every call is a pcall. Every algorithm is one function that reads its counter, hands what it admits on
-- to `rest` (which reads the charge's other counters the same way and comes back with the least), and only then writes:
-- nothing of a charge is written before all of it was read. The first write of each is a ZADD or SET, which a full,
-- read-only or failing server refuses; such a refusal before anything was written is the whole reply.
-- Functions are few and share few locals: making those costs a script more than looking names up. Hence numbers in place of
-- constants: 4503599627370496 = 2^52, where running totals wrap, exact in a double; 316224000000000 us, the longest wait
-- (ratelimit.MaxSpan); 256, the entries one charge trims at most.
local call = redis.pcall
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local reply = { now, 0, 0, 0, 0, 0, 0, 0 }
local dirty = false -- whether this script has written anything
local now_text -- of `now`, once it is needed
local kind, hits -- of the charge being settled
local rest -- reads and writes the charge's remaining counters: admitted so far -> admitted by all, failure

local function hits_that_fit(quota, units, room)
  if quota <= 0 or units > quota then return 0 end
  if units == 0 then return hits end
  return room < units and 0 or math.floor(room / units)
end

local function answer(at, quota, units, used, retry, reset, charged)
  if quota <= 0 or units > quota then retry = -1 end
  reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = used, retry, reset, charged
end

-- sliding_window_log: a sorted set. Score: us. Member: doubles; its score, cum, weight and, as long as it is the last one, used
-- and first; and a final + while entries before the first live one wait to be trimmed. cum, weight: units ever charged up
-- to and with this entry; its own. used, first: the units in the window when it was written, and the score of the first
-- live entry then: while that one is live, the last member alone says all. The last member may lack these (raise.lua).

-- What a member says: score, cum, weight and, if it has them, used and first. Nil when it is no member.
local function entry(member)
  local size = member and #member or 0
  if size < 24 then return end
  local score, cum, weight, used, first
  if size < 40 then
    score, cum, weight = struct.unpack('<ddd', member)
  else
    score, cum, weight, used, first = struct.unpack('<ddddd', member)
  end
  if cum >= 0 and cum < 4503599627370496 and weight >= 0 then return score, cum, weight, used, first end
end

-- The first entry from `first` on after which no more than `most` units came: score, cum, member. Nil when it is damaged.
local function entry_after(key, first, cum, most)
  local from = string.format('%.0f', first)
  local r = call('ZRANGEBYSCORE', key, from, from)
  local score, at = entry(r[1])
  if not at or (cum - at) % 4503599627370496 <= most then return score, at, r[1] end
  local low, high = call('ZCOUNT', key, '-inf', '(' .. from) + 1, call('ZCARD', key) - 1
  while true do
    local middle = math.floor((low + high) / 2)
    r = call('ZRANGE', key, middle, middle)
    score, at = entry(r[1])
    if not at or low >= high then return score, at, r[1] end
    if (cum - at) % 4503599627370496 <= most then high = middle else low = middle + 1 end
  end
end

-- Units leave the oldest live entries. The entry that is then first keeps its cum; the last one says anew what is used.
-- Returns failure, first, weight of the last, last member.
local function refund_log(key, used, first, last, cum, weight, member)
  local score, at, oldest = entry_after(key, first, cum, used - 1)
  if not score then return 2 end
  local before = '(' .. string.format('%.0f', score)
  local n = call('ZCOUNT', key, '-inf', before)
  local weight_at = used - (cum - at) % 4503599627370496
  if score == last then weight = weight_at end
  local renewed = struct.pack('<ddddd', last, cum, weight, used, score) .. (n > 256 and '+' or '')
  local r = call('ZADD', key, string.format('%.0f', last), renewed)
  if type(r) == 'table' then return r end
  dirty = true
  if renewed ~= member then call('ZREM', key, member) end
  local kept = struct.pack('<ddd', score, at, weight_at)
  if score < last and kept ~= oldest then
    call('ZADD', key, string.format('%.0f', score), kept)
    call('ZREM', key, oldest)
  end
  if n > 0 then call('ZREMRANGEBYRANK', key, '0', math.min(n, 256) - 1) end
  return nil, score, weight, renewed
end

local function sliding_log(at, admitted, shadow, key, quota, units, window)
  local edge, used = now - window, 0
  local first, first_cum -- the oldest live entry
  local last, cum, weight, wrong -- the newest, live or not
  local left, expired = false, 0 -- whether entries wait to be trimmed; how many units expired since the last write
  local r = call('ZRANGE', key, '-1', '-1')
  if r.err then return 0, r end
  local member = r[1]
  if member then
    local was, since
    last, cum, weight, was, since = entry(member)
    if not last then return 0, 2 end
    if not was then left, expired = true, 4503599627370496 end
    if last > now + window then -- written under a wrong clock: reads as empty
      last, wrong = nil, true
    elseif since and since > edge then
      first, used, left = since, was, #member > 40
    else
      if was then expired, left = was, #member > 40 end
      if last > edge then
        r = call('ZRANGEBYSCORE', key, string.format('(%.0f', edge), '+inf', 'LIMIT', '0', '1')
        local own
        first, first_cum, own = entry(r[1])
        if not first then return 0, 2 end
        used = (cum - first_cum + own) % 4503599627370496
        expired = expired - used
      end
    end
  end

  local fit, failed = hits_that_fit(quota, units, quota - used), nil
  admitted, failed = rest(shadow and admitted or math.min(admitted, fit))
  if failed then return 0, failed end

  local charged = 0
  if kind == 0 then charged = admitted < fit and admitted or fit end
  if charged > 0 then
    local add, slot, score, merged = charged * units, math.floor(window / 900), now, false
    local total, own = add, add
    if last then
      if last >= now then score = last + 1 end
      total = (cum + add) % 4503599627370496
      if quota > 1024 and first then
        slot = math.max(1, slot)
        merged = math.floor(last / slot) == math.floor(score / slot)
        if merged then own = weight + add end
      end
    end
    -- What lies before the first live entry is trimmed: by score when it is known to be little, else counted first.
    local before, n
    if left or expired > 0 then
      before = string.format('(%.0f', first or score)
      if left or expired > 256 then n = call('ZCOUNT', key, '-inf', before) end
    end
    if not first or (merged and first == last) then first, first_cum = score, total end
    used = used + add
    local text, old = now_text, member
    if score > now then
      text = string.format('%.0f', score)
    elseif not text then
      text = string.format('%.0f', now)
      now_text = text
    end
    member = struct.pack('<ddddd', score, total, own, used, first)
    if n and n > 256 then member = member .. '+' end
    r = call('ZADD', key, text, member)
    if type(r) == 'table' then return 0, r end
    dirty = true
    if merged then
      call('ZREM', key, old)
    else
      if wrong then -- the whole log is replaced, after a ZADD has shown that the server takes writes
        call('UNLINK', key)
        call('ZADD', key, text, member)
      end
      call('PEXPIRE', key, math.ceil((score - now + window + 2 * math.max(1000, slot)) / 1000))
    end
    if n then
      if n > 0 then call('ZREMRANGEBYRANK', key, '0', math.min(n, 256) - 1) end
    elseif before then
      call('ZREMRANGEBYSCORE', key, '-inf', before)
    end
    last, cum = score, total
  elseif kind == 2 and first and units > 0 then
    if units * hits < used then
      used = used - units * hits
      failed, first, weight, member = refund_log(key, used, first, last, cum, weight, member)
      first_cum = nil
      if failed then return 0, failed end
    else -- the ZADD changes nothing: a full server shall refuse this too
      r = call('ZADD', key, 'XX', string.format('%.0f', last), member)
      if type(r) == 'table' then return 0, r end
      dirty = true
      call('UNLINK', key)
      first, used = nil, 0
    end
  end

  local retry, reset = 0, 0
  if first then
    reset = last + window - now
    local most = quota - units
    if units > 0 and most >= 0 and used > most then
      local score = first
      if first < last and not (first_cum and (cum - first_cum) % 4503599627370496 <= most) then
        score = entry_after(key, first, cum, most) or last
      end
      retry = score + window - now
    end
  end
  answer(at, quota, units, used, retry, reset, charged)
  return admitted
end

-- fixed_window, sliding_window_counter: a string, F:start:count or S:start:prev:cur.
local function windows(at, admitted, shadow, key, quota, units, window, fixed)
  local function weighted(prev, e) return math.ceil(prev * ((window - e) / window)) end

  -- The least e at which no more than `most` of prev units count.
  local function fades_to(prev, most)
    if prev <= most then return 0 end
    local e = math.min(math.max(0, window - math.floor(most * window / prev)), window)
    while e > 0 and weighted(prev, e - 1) <= most do e = e - 1 end
    while e < window and weighted(prev, e) > most do e = e + 1 end
    return e
  end

  local start, prev, cur = now - now % window, 0, 0
  local r = call('GET', key)
  if type(r) == 'table' then return 0, r end
  if r then
    local was, before, count
    if fixed then
      was, count = string.match(r, '^F:(%d+):(%d+)$')
      before = 0
    else
      was, before, count = string.match(r, '^S:(%d+):(%d+):(%d+)$')
    end
    if not was then return 0, 2 end
    was = was + 0
    if was <= now + window and start <= was then
      start, prev, cur = was, before + 0, count + 0
    elseif was < start and start - was == window and not fixed then
      prev = count + 0
    end
  end
  local e = math.max(0, now - start)
  local fit, failed = hits_that_fit(quota, units, quota - (weighted(prev, e) + cur)), nil
  admitted, failed = rest(shadow and admitted or math.min(admitted, fit))
  if failed then return 0, failed end

  local charged, store = 0, false
  if kind == 0 then
    charged = math.min(admitted, fit)
    store, cur = charged > 0, cur + charged * units
  elseif kind == 2 and units > 0 and prev + cur > 0 then
    local back, counted = units * hits, weighted(prev, e)
    prev = math.max(0, prev - math.floor(back * window / (window - e)))
    store, cur = true, math.max(0, cur - math.max(0, back - (counted - weighted(prev, e))))
  end
  if store then
    local value = fixed and string.format('F:%.0f:%.0f', start, cur) or string.format('S:%.0f:%.0f:%.0f', start, prev, cur)
    local ends = start + (fixed and window or 2 * window)
    r = call('SET', key, value, 'PX', math.ceil((ends - now) / 1000) + 1000)
    if r.err then return 0, r end
    dirty = true
  end

  local used, retry, reset, most = weighted(prev, e) + cur, 0, 0, quota - units
  if cur > 0 then
    reset = start - now + (fixed and window or 2 * window)
  elseif prev > 0 then
    reset = start - now + window
  end
  if units > 0 and most >= 0 and used > most then
    if fixed then
      retry = reset
    elseif cur <= most then
      retry = start - now + fades_to(prev, most - cur)
    else
      retry = start - now + window + fades_to(cur, most)
    end
  end
  answer(at, quota, units, used, retry, reset, charged)
  return admitted
end

-- token_bucket, leaky_bucket: a string, T:ts:level or L:ts:level. level: units taken and not refilled at ts.
local function buckets(at, admitted, shadow, key, quota, units, every, refill, leaky)
  local function drain(level) return math.min(316224000000000, math.ceil(level * every / refill)) end

  -- Absorbs the rounding of doubles between two readings of one stored level.
  local function tolerance(stored) return math.max(1e-6, 4e-15 * math.max(quota, stored)) end

  -- A clock that jumped forward refills no more than about a minute.
  local ts = tonumber(ARGV[1])
  if ts == 0 or ts > now then ts = now end
  local level, slack, repair = 0, tolerance(0), false
  local r = call('GET', key)
  if type(r) == 'table' then return 0, r end
  if r then
    local tag, was, stored = string.match(r, '^([TL]):(%d+):(%S+)$')
    was, stored = tonumber(was), tonumber(stored)
    if not (was and stored) or tag ~= (leaky and 'L' or 'T') then return 0, 2 end
    level, slack = stored, tolerance(stored)
    if was > now + 60000000 then -- a minute
      repair = true -- written under a wrong clock: read as now, and a take stores it so even when it charges nothing
    elseif was >= ts then
      ts = was
    else
      level = math.max(0, level - (ts - was) * refill / every)
    end
  end
  local fit, failed = hits_that_fit(quota, units, quota - level + slack), nil
  admitted, failed = rest(shadow and admitted or math.min(admitted, fit))
  if failed then return 0, failed end

  local charged, store, delay, step = 0, false, 0, 0
  if leaky and kind ~= 2 and math.min(admitted, fit) > 0 then delay, step = drain(level), drain(units) end
  if kind == 0 then
    charged = math.min(admitted, fit)
    store, level = repair or charged > 0, level + charged * units
  elseif kind == 2 and units > 0 and level > 0 then
    store, level = true, math.max(0, level - units * hits)
  end
  local ahead = math.max(0, ts - now)
  if store then
    local value = string.format(leaky and 'L:%.0f:%.17g' or 'T:%.0f:%.17g', ts, level)
    r = call('SET', key, value, 'PX', math.ceil((ahead + drain(level)) / 1000) + 120000)
    if r.err then return 0, r end
    dirty, slack = true, tolerance(level)
  end

  local retry, reset = 0, 0
  if level > 0 then reset = math.min(316224000000000, ahead + drain(level)) end
  if hits_that_fit(quota, units, quota - level + slack) < 1 then
    retry = math.max(1, math.min(316224000000000, ahead + drain(level + units - quota)))
  end
  answer(at, quota, units, math.max(0, math.ceil(level - slack)), retry, reset, charged)
  if leaky then reply[at + 4], reply[at + 5] = delay, step end
  return admitted
end

local plan, byte, key, at, left = ARGV[2], 1, 0, 2, 0 -- the charges, read up to; the answers; counters of this charge to come
local limits = {}
for i = 3, #ARGV do limits[i - 2] = tonumber(ARGV[i]) end

rest = function(admitted)
  if left == 0 then return admitted end
  local high, low = string.byte(plan, byte, byte + 1)
  local of = (high * 256 + low) * 5
  local algorithm, shadow, to = limits[of + 1], false, at
  if algorithm >= 8 then algorithm, shadow = algorithm - 8, true end
  byte, key, at, left = byte + 2, key + 1, at + (algorithm == 2 and 6 or 4), left - 1
  local quota, units, span = limits[of + 2], limits[of + 3], limits[of + 4]
  if algorithm == 5 then return sliding_log(to, admitted, shadow, KEYS[key], quota, units, span) end
  if algorithm >= 3 then return windows(to, admitted, shadow, KEYS[key], quota, units, span, algorithm == 3) end
  return buckets(to, admitted, shadow, KEYS[key], quota, units, span, limits[of + 5], algorithm == 2)
end

local bytes = #plan
while byte < bytes do
  local high, low, a, b, c, d, e, status
  kind, high, low, a, b, c, d, e = string.byte(plan, byte, byte + 7)
  left, hits, status = high * 256 + low, (((a * 256 + b) * 256 + c) * 256 + d) * 256 + e, at
  byte, at = byte + 8, at + 1
  local admitted, failed = rest(hits)
  if type(failed) == 'table' then
    if string.match(failed.err, '^WRONGTYPE') then
      failed = 1
    elseif dirty then
      failed = 3
    else
      return failed
    end
  end
  if failed then -- what was not read of this charge is skipped
    at, byte, key = status + 1, byte + 2 * left, key + left
  end
  reply[status] = failed and -failed or kind == 2 and hits or admitted
end
for i = #reply, at, -1 do reply[i] = nil end -- unused, or of a charge that failed half way
return reply
