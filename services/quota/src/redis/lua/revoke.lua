-- revoke, version 1: a virtual key that the very next admission refuses.
-- KEYS  1 book
-- ARGV  1 key's id
-- Reply {revoked, now} | {missing, now} | {fenced, now, was, is}

local generation, refusal = generation_in_force()
if not generation then
    return refusal
end
redis.call('HSET', book, 'revoked ' .. ARGV[1], '1')
return { 'revoked', now_ms }
