-- apply, version 1: what the domain decided, compared with the store and applied at once or not at all.
--
-- KEYS  1 book, 2 record, 3 due set, 4 pending set, then for each scope its rate and its slots, then, where an
--       `Idempotency-Key` is asked for, its key and the record of the holder it may be taken from
-- ARGV  1 expected version of the record, `-` for none      2 version after this step: an id of the operation
--       3 `look`, `write` or `charge` (counters only)        4 body of the record
--       5 member: the reservation's 16 bytes                 6 admitted ms, `now` to stamp it
--       7 due ms, `+ms` from now                             8 index changes: d/D due, p/P pending, s/S slots (lower adds)
--       9 `good`, `keep` or `go`: the record's life          10 horizon ms   11 not before ms
--       12 caller's clock ms, or empty                       13 `over`: only if the lease ended
--       14 virtual key's id, or empty                        15 idempotency until ms, or empty
--       16 holder whose key is free again, or empty          17 version of that holder's record
--       18 partition, or empty                               19 offset
--       20 scopes that count                                 21 scopes in all
--       22-25 windows      26-34 changes: charged and held together, charged, pending; each requests, tokens, nano-USD
--       then the scopes' names, the number of limits, and for each: kind (c calendar, r rate, R rate with its buckets,
--       s slots, n nothing), scope, field or unit, and what may be there at most before this step (`!` never, empty any)
-- Reply {done, now, admitted, due, seen} | {stale, now, record} | {denied, now, seen} | {early, now} | {revoked, now}
--       {held, now, holder} | {skewed, now} | {applied, now} | {beyond, now} | {missing, now} | {fenced, now, was, is}
--       `seen` has for each limit what was found: a decimal, a number of slots, or {latest s, s, requests, tokens, ...}

local BUCKETS = 61
local CELLS = { 'r', 't', 'u', 'R', 'T', 'U', 'pr', 'pt', 'pu' }
-- Decimals of 19 digits come near the end of 64 bits: the sum of two shorter ones does not.
local LONGEST = 18
local WINDOWS_KEPT = 8

local counted, scopes = tonumber(ARGV[20]), tonumber(ARGV[21])
local first_limit = 35 + scopes
local limits = tonumber(ARGV[first_limit])

-- Everything that the step needs of the book is read at once: a call from Lua costs more than what it does.
local fields, place = {}, {}
local function wanted(field)
    fields[#fields + 1] = field
    place[field] = #fields + 2
end
for scope = 1, counted do
    local name = ARGV[34 + scope]
    wanted('windows ' .. name)
    wanted('r t0 ' .. name)
    wanted('t t0 ' .. name)
    wanted('u t0 ' .. name)
end
for i = 1, limits do
    local at = first_limit + 4 * i - 3
    if ARGV[at] == 'c' then
        wanted(ARGV[at + 2])
    end
end
local revoked = 'revoked ' .. ARGV[14]
wanted(revoked)
local source = ARGV[18] ~= '' and 'applied ' .. ARGV[18] or nil
if source then
    wanted(source)
end
local generation, refusal, known = generation_in_force(fields)
if not generation then
    return refusal
end
local function in_book(field)
    return known[place[field]]
end

local function rate_key(scope)
    return KEYS[3 + 2 * scope]
end
local function slots_key(scope)
    return KEYS[4 + 2 * scope]
end

-- Drops the buckets that no minute reaches any more. The latest second of each rate, or false where there is none.
local latest_of = {}
local function advance(key)
    if latest_of[key] ~= nil then
        return latest_of[key]
    end
    local latest = redis.call('HGET', key, 'latest')
    latest = latest and tonumber(latest)
    if latest and now_s - BUCKETS >= latest then
        redis.call('DEL', key)
        latest = false
    elseif latest and now_s > latest then
        local buckets = {}
        for second = latest - BUCKETS + 1, now_s - BUCKETS do
            buckets[#buckets + 1] = 'r' .. second
            buckets[#buckets + 1] = 't' .. second
        end
        local dropped = redis.call('HMGET', key, unpack(buckets))
        for i, amount in ipairs(dropped) do
            if amount then
                redis.call('HINCRBY', key, i % 2 == 1 and 'r' or 't', negated(amount))
                redis.call('HDEL', key, buckets[i])
            end
        end
        latest = now_s
        redis.call('HSET', key, 'latest', latest)
        redis.call('PEXPIREAT', key, whole((latest + BUCKETS) * 1000))
    end
    latest_of[key] = latest
    return latest
end

local function rate_of(key, with_buckets)
    if not with_buckets then
        local sums = redis.call('HMGET', key, 'r', 't')
        return { now_s, now_s, sums[1] or '0', sums[2] or '0' }
    end
    local latest = latest_of[key] or now_s
    local buckets = {}
    for second = latest - BUCKETS + 1, latest do
        buckets[#buckets + 1] = 'r' .. second
        buckets[#buckets + 1] = 't' .. second
    end
    local amounts = redis.call('HMGET', key, unpack(buckets))
    local found = { latest }
    for i = 1, #buckets, 2 do
        if amounts[i] or amounts[i + 1] then
            found[#found + 1] = tonumber(string.sub(buckets[i], 2))
            found[#found + 1] = amounts[i] or '0'
            found[#found + 1] = amounts[i + 1] or '0'
        end
    end
    return found
end

local function seen(is_denied)
    local found = {}
    for i = 1, limits do
        local at = first_limit + 4 * i - 3
        local kind, scope = ARGV[at], tonumber(ARGV[at + 1])
        found[i] = ''
        if kind == 'r' or kind == 'R' then
            advance(rate_key(scope))
            found[i] = rate_of(rate_key(scope), is_denied or kind == 'R')
        elseif is_denied and kind == 'c' then
            found[i] = in_book(ARGV[at + 2]) or '0'
        elseif is_denied and kind == 's' then
            found[i] = redis.call('ZCOUNT', slots_key(scope), '(' .. whole(now_ms), '+inf')
        end
    end
    return found
end

local function is_full(at)
    local kind, scope, most = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 3]
    if most == '' or kind == 'n' then
        return false
    elseif most == '!' then
        return true
    elseif kind == 'c' then
        return above(in_book(ARGV[at + 2]) or '0', most)
    elseif kind == 's' then
        return redis.call('ZCOUNT', slots_key(scope), '(' .. whole(now_ms), '+inf') > tonumber(most)
    end
    advance(rate_key(scope))
    return above(redis.call('HGET', rate_key(scope), ARGV[at + 2]) or '0', most)
end

-- Compare: the record, then what only the store knows.

local record = redis.call('GET', KEYS[2])
local version, admitted, due = parsed(record, generation)
if version == ARGV[2] then
    -- This very step ran before, and its reply was lost.
    return { 'done', now_ms, admitted, due, seen(false) }
end
if (version or '-') ~= ARGV[1] then
    return { 'stale', now_ms, version and record or '' }
end
if source and not version then
    local applied = in_book(source)
    if applied and not above(ARGV[19], applied) then
        return { 'applied', now_ms }
    end
end
if ARGV[12] ~= '' and math.abs(now_ms - tonumber(ARGV[12])) > 5000 then
    return { 'skewed', now_ms }
end
if ARGV[14] ~= '' and in_book(revoked) then
    return { 'revoked', now_ms }
end
local idempotency = 5 + 2 * scopes
if ARGV[15] ~= '' then
    -- 16 bytes of the holder, then until when.
    local taken = redis.call('GET', KEYS[idempotency])
    local holder = taken and now_ms < tonumber(string.sub(taken, 17)) and string.sub(taken, 1, 16)
    if holder and holder ~= ARGV[16] then
        return { 'held', now_ms, holder }
    end
    if holder and (parsed(redis.call('GET', KEYS[idempotency + 1]), generation) or '-') ~= ARGV[17] then
        return { 'held', now_ms, holder }
    end
end
if ARGV[13] == 'over' and now_ms < tonumber(due) then
    return { 'early', now_ms }
end
for i = 1, limits do
    if is_full(first_limit + 4 * i - 3) then
        return { 'denied', now_ms, seen(true) }
    end
end
local changes = {}
for i, cell in ipairs(CELLS) do
    if ARGV[25 + i] ~= '0' then
        changes[#changes + 1] = { cell, ARGV[25 + i] }
    end
end
if #changes > 0 then
    for scope = 1, counted do
        for i = 1, 3 do
            local total = in_book(CELLS[i] .. ' t0 ' .. ARGV[34 + scope])
            if total and #total > LONGEST then
                return { 'beyond', now_ms }
            end
        end
    end
end

-- Apply. Nothing below can fail.

admitted = ARGV[6] == 'now' and whole(now_ms) or ARGV[6]
due = string.byte(ARGV[7]) == 43 and whole(now_ms + tonumber(ARGV[7])) or ARGV[7]

if ARGV[3] == 'write' then
    local written = table.concat({ generation, ARGV[2], admitted, due, ARGV[4] }, ' ')
    if ARGV[9] == 'good' then
        redis.call('SET', KEYS[2], written)
    elseif ARGV[9] == 'keep' then
        redis.call('SET', KEYS[2], written, 'KEEPTTL')
    else
        local gone_at = math.max(now_ms + tonumber(ARGV[10]), tonumber(ARGV[11]))
        redis.call('SET', KEYS[2], written, 'PXAT', whole(gone_at))
    end
    if ARGV[15] ~= '' then
        redis.call('SET', KEYS[idempotency], ARGV[5] .. ARGV[15], 'PXAT', ARGV[15])
    end
end

local function in_index(letter)
    return string.find(ARGV[8], letter, 1, true)
end
if in_index('d') then
    redis.call('ZADD', KEYS[3], due, ARGV[5])
elseif in_index('D') then
    redis.call('ZREM', KEYS[3], ARGV[5])
end
if in_index('p') then
    redis.call('ZADD', KEYS[4], admitted, ARGV[5])
elseif in_index('P') then
    redis.call('ZREM', KEYS[4], ARGV[5])
end
-- A slot counts while its lease lives, by its score; the set itself lives as long as its longest lease.
local takes_slots, frees_slots = in_index('s'), in_index('S')
for scope = 1, counted do
    if takes_slots then
        redis.call('ZADD', slots_key(scope), due, ARGV[5])
        if redis.call('PEXPIREAT', slots_key(scope), due, 'GT') == 0 then
            redis.call('PEXPIREAT', slots_key(scope), due, 'NX')
        end
    elseif frees_slots then
        redis.call('ZREM', slots_key(scope), ARGV[5])
    end
end

-- Forgets windows before the one that precedes the reservation's own, unless something is still held there.
local function pruned(listed, name)
    local kept = {}
    for window in string.gmatch(listed, '%S+') do
        local kind, ordinal = string.sub(window, 1, 1), tonumber(string.sub(window, 2))
        local is_recent = false
        for i = 22, 25 do
            is_recent = is_recent
                or (string.sub(ARGV[i], 1, 1) == kind and ordinal >= tonumber(string.sub(ARGV[i], 2)) - 1)
        end
        local suffix = ' ' .. window .. ' ' .. name
        local fields = {}
        for i, cell in ipairs(CELLS) do
            fields[i] = cell .. suffix
        end
        local values = redis.call('HMGET', book, unpack(fields))
        local is_held = false
        for i = 1, 3 do
            is_held = is_held or (values[i] or '0') ~= (values[i + 3] or '0')
        end
        if is_recent or is_held then
            kept[#kept + 1] = window
        else
            redis.call('HDEL', book, unpack(fields))
        end
    end
    return ' ' .. table.concat(kept, ' ') .. ' '
end

if #changes > 0 then
    local admitted_s = math.floor(tonumber(admitted) / 1000)
    for scope = 1, counted do
        local name = ARGV[34 + scope]
        local before = in_book('windows ' .. name) or ' '
        local listed = before
        for i = 22, 25 do
            local window = ARGV[i]
            if not string.find(listed, ' ' .. window .. ' ', 1, true) then
                listed = listed .. window .. ' '
            end
            local suffix = ' ' .. window .. ' ' .. name
            for _, change in ipairs(changes) do
                redis.call('HINCRBY', book, change[1] .. suffix, change[2])
            end
        end
        local _, windows = string.gsub(listed, '%S+', '')
        if windows > WINDOWS_KEPT then
            listed = pruned(listed, name)
        end
        if listed ~= before then
            redis.call('HSET', book, 'windows ' .. name, listed)
        end
        if ARGV[26] ~= '0' or ARGV[27] ~= '0' then
            local key = rate_key(scope)
            advance(key)
            if admitted_s > now_s - BUCKETS then
                if ARGV[26] ~= '0' then
                    redis.call('HINCRBY', key, 'r', ARGV[26])
                    redis.call('HINCRBY', key, 'r' .. admitted_s, ARGV[26])
                end
                if ARGV[27] ~= '0' then
                    redis.call('HINCRBY', key, 't', ARGV[27])
                    redis.call('HINCRBY', key, 't' .. admitted_s, ARGV[27])
                end
                if not latest_of[key] then
                    latest_of[key] = now_s
                    redis.call('HSET', key, 'latest', now_s)
                    redis.call('PEXPIREAT', key, whole((now_s + BUCKETS) * 1000))
                end
            end
        end
    end
end

if source then
    local applied = in_book(source)
    if not applied or above(ARGV[19], applied) then
        redis.call('HSET', book, source, ARGV[19])
    end
end
return { 'done', now_ms, admitted, due, seen(false) }
