-- counters, version 1: everything counted for the tenant, in one step. Its cost grows with the tenant's scopes.
-- KEYS  1 book, 2 due set, 3 pending set
-- Reply {counted, now, {field, value, ...}, due, pending} | {missing, now} | {fenced, now, was, is}

local generation, refusal = generation_in_force()
if not generation then
    return refusal
end
return {
    'counted',
    now_ms,
    redis.call('HGETALL', book),
    redis.call('ZCARD', KEYS[2]),
    redis.call('ZCARD', KEYS[3]),
}
