-- read, version 1: one record as it is now.
-- KEYS  1 book, 2 record
-- Reply {found, now, record or empty} | {missing, now} | {fenced, now, was, is}

local generation, refusal = generation_in_force()
if not generation then
    return refusal
end
local record = redis.call('GET', KEYS[2])
return { 'found', now_ms, parsed(record, generation) and record or '' }
