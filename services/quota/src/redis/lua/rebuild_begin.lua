-- rebuild_begin, version 2: takes the book out of use and away, and says what else of it is left.
--
-- From here on every command is refused, until `rebuild_open` with the same token. A later begin takes over.
-- KEYS  1 book, 2 due set, 3 pending set
-- ARGV  1 token of the rebuilder, 2 `any`, or `lost` to leave alone a book that is in force
-- Reply {begun, now, generation to come, names of scopes, open and pending members, revoked keys} | {open, now}

if ARGV[2] == 'lost' and generation_in_force() then
    return { 'open', now_ms }
end

local scopes, revoked = {}, {}
for _, field in ipairs(redis.call('HKEYS', book)) do
    if string.sub(field, 1, 8) == 'windows ' then
        scopes[#scopes + 1] = string.sub(field, 9)
    elseif string.sub(field, 1, 8) == 'revoked ' then
        revoked[#revoked + 1] = string.sub(field, 9)
    end
end
local members = redis.call('ZRANGE', KEYS[2], 0, -1)
for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    members[#members + 1] = member
end
-- The clock may have gone back since the last one; a generation must never be used twice.
local last = math.max(
    tonumber(redis.call('HGET', book, 'generation') or 0),
    tonumber(redis.call('HGET', book, 'last_generation') or 0)
)
local generation = whole(math.max(now_ms, last + 1))
redis.call('UNLINK', book, KEYS[2], KEYS[3])
redis.call('HSET', book, 'rebuilding', ARGV[1], 'last_generation', generation, 'replid', node_replid())
return { 'begun', now_ms, generation, scopes, members, revoked }
