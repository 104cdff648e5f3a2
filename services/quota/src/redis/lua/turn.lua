-- turn, version 1: whose turn it is to rebuild. Two at a time would take each other's books away and never end.
-- KEYS  1 the turn
-- ARGV  1 who asks, 2 for how long, ms
-- Reply {turn, now, 1} for whoever has it from now on, {turn, now, 0} for everybody else

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
    return { 'turn', now_ms, 0 }
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { 'turn', now_ms, 1 }
