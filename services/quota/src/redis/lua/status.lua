-- status, version 1: whether the tenant's book may be used. Answers behind the fence too.
-- KEYS  1 book
-- Reply {status, now, generation or empty, validated replid or empty, node's replid, is being rebuilt}

local known = redis.call('HMGET', book, 'generation', 'replid', 'rebuilding')
return { 'status', now_ms, known[1] or '', known[2] or '', node_replid(), known[3] and 1 or 0 }
