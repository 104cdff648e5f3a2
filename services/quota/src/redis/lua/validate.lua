-- validate, version 1: takes the book as it is for whole, under the node's present replication id. For whoever knows that
-- nothing was lost; otherwise the book is rebuilt.
-- KEYS  1 book
-- ARGV  1 the replication id that was looked at
-- Reply {validated, now} | {moved, now, is} | {missing, now}

if not redis.call('HGET', book, 'generation') then
    return { 'missing', now_ms }
end
local replid = node_replid()
if replid ~= ARGV[1] then
    return { 'moved', now_ms, replid }
end
redis.call('HSET', book, 'replid', replid)
return { 'validated', now_ms }
