-- list, version 1: members of the due or pending set up to now, oldest first.
-- KEYS  1 book, 2 set
-- ARGV  1 `due` (only leases that ended) or `all`, 2 at most
-- Reply {listed, now, generation, members} | {missing, now} | {fenced, now, was, is}

local generation, refusal = generation_in_force()
if not generation then
    return refusal
end
local until_score = ARGV[1] == 'due' and whole(now_ms) or '+inf'
local members = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', until_score, 'LIMIT', 0, ARGV[2])
return { 'listed', now_ms, generation, members }
