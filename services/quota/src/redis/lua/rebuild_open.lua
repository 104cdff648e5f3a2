-- rebuild_open, version 1: the rebuilt book is in force.
-- KEYS  1 book
-- ARGV  1 token, 2 generation
-- Reply {opened, now} | {lost, now}

local known = redis.call('HMGET', book, 'rebuilding', 'replid')
if known[1] ~= ARGV[1] or known[2] ~= node_replid() then
    return { 'lost', now_ms }
end
redis.call('HDEL', book, 'rebuilding')
redis.call('HSET', book, 'generation', ARGV[2])
return { 'opened', now_ms }
