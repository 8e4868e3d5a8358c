-- What wrk does for the figures: it asks for each path of a file in turn, and prints what it
-- counted as one line of JSON. Of one thread: each would have the whole list.
local paths, turn = {}, 0

function init(arguments)
   for line in io.lines(arguments[1]) do
      paths[#paths + 1] = line
   end
end

function request()
   turn = turn % #paths + 1
   return wrk.format("GET", paths[turn])
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"microseconds":%d,"requests":%d,"bytes":%d,"errors":%d,"p50_us":%d,"p99_us":%d,"p999_us":%d}\n',
      summary.duration, summary.requests, summary.bytes,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout,
      latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
