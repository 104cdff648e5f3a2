-- rebuild_put, version 1: a chunk of a book that is being rebuilt.
-- KEYS  1 book, then the keys that the chunk writes
-- ARGV  1 token, then for each command: its name, the number of its key, how many arguments follow, the arguments
-- Reply {put, now} | {lost, now}: another rebuilder took over, or the node failed over

local known = redis.call('HMGET', book, 'rebuilding', 'replid')
if known[1] ~= ARGV[1] or known[2] ~= node_replid() then
    return { 'lost', now_ms }
end
local at = 2
while ARGV[at] do
    local arguments = tonumber(ARGV[at + 2])
    redis.call(ARGV[at], KEYS[tonumber(ARGV[at + 1])], unpack(ARGV, at + 3, at + 2 + arguments))
    at = at + 3 + arguments
end
return { 'put', now_ms }
