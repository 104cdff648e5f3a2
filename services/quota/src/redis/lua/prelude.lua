-- What every script starts with. KEYS[1] is always the tenant's book: the hash that holds its counters, and beside them
-- `generation` and `replid`. A book without a generation is missing or half built; a book whose `replid` is not the
-- node's own was validated before a failover or a restart. Either way nothing is answered from it (I15).
--
-- Amounts are decimal strings from end to end: a Lua number is a double and loses digits beyond 2^53. Redis adds them
-- (HINCRBY), and `above` compares them. Times in ms are far below 2^53 and are numbers.

local book = KEYS[1]
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_s = tonumber(clock[1])

local function whole(number)
    return string.format('%.0f', number)
end

local function node_replid()
    return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- The generation in force, or nil and the reply that says why there is none; with it, what `fields` of the book hold.
local function generation_in_force(fields)
    local known = redis.call('HMGET', book, 'generation', 'replid', unpack(fields or {}))
    if not known[1] then
        return nil, { 'missing', now_ms }
    end
    local replid = node_replid()
    if known[2] ~= replid then
        return nil, { 'fenced', now_ms, known[2], replid }
    end
    return known[1], nil, known
end

-- Whether the decimal `a` is above the decimal `b`, exactly.
local function above(a, b)
    local a_negative, b_negative = string.byte(a) == 45, string.byte(b) == 45
    if a_negative ~= b_negative then
        return b_negative
    end
    if #a ~= #b then
        return (#a > #b) ~= a_negative
    end
    return a ~= b and (a > b) ~= a_negative
end

local function negated(amount)
    if string.byte(amount) == 45 then
        return string.sub(amount, 2)
    end
    return amount == '0' and '0' or '-' .. amount
end

-- A record is `generation version admitted_ms due_ms body`. One of another generation is a leftover, as good as absent.
local function parsed(record, generation)
    if not record then
        return nil
    end
    local of, version, admitted, due = string.match(record, '^(%S+) (%S+) (%S+) (%S+) ')
    if of ~= generation then
        return nil
    end
    return version, admitted, due
end
