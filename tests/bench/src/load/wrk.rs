//! Plain requests, from `wrk`, which prints one line of figures through its script.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{ANTHROPIC_VERSION, Seen, as_f64};
use crate::case::Case;
use crate::error::BenchError;
use crate::subject::Target;

/// A pattern in `wrk`'s script: everything that changes is in files, so that nothing needs quoting.
const SCRIPT: &str = r#"
local function text(name)
  local file = assert(io.open(name, "rb"))
  local content = file:read("*a")
  file:close()
  return content
end
wrk.method = "POST"
wrk.body = text("FOLDER/body.json")
wrk.headers["content-type"] = "application/json"
wrk.headers["anthropic-version"] = "ANTHROPIC_VERSION"
wrk.headers["authorization"] = text("FOLDER/authorization")
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("figures %d %d %d %d %d\n", summary.requests, summary.duration,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"#;

/// Runs `wrk` for `time`, in whole seconds as it counts.
pub(crate) fn run(target: &Target, case: &Case, time: Duration, folder: &Path) -> Result<Seen, BenchError> {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).map_err(BenchError::io("wrk's script"));
    write("body.json", &case.body())?;
    write("authorization", &target.authorization)?;
    let script = folder.join("wrk.lua");
    write(
        "wrk.lua",
        &SCRIPT.replace("FOLDER", &folder.display().to_string()).replace("ANTHROPIC_VERSION", ANTHROPIC_VERSION),
    )?;
    let output = Command::new("wrk")
        .args(["--threads", "1", "--timeout", "10s"])
        .args(["--connections", &case.connections.to_string()])
        .args(["--duration", &format!("{}s", time.as_secs().max(1))])
        .arg("--script")
        .arg(&script)
        .arg(format!("http://{}{}", target.address, case.ingress.path()))
        .output()
        .map_err(BenchError::io("wrk"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().find_map(|line| line.strip_prefix("figures "));
    let figures: Vec<u64> =
        figures.into_iter().flat_map(str::split_whitespace).filter_map(|figure| figure.parse().ok()).collect();
    let [requests, duration_us, errors, p50_us, p99_us] = figures[..] else {
        return Err(BenchError::unexpected("wrk", format!("{text}{}", String::from_utf8_lossy(&output.stderr))));
    };
    if errors > 0 || requests == 0 {
        return Err(BenchError::unexpected(
            format!("plain load on {}", target.name),
            format!("{errors} of {requests} requests failed"),
        ));
    }
    Ok(Seen {
        requests,
        seconds: as_f64(duration_us) / 1e6,
        p50_ms: as_f64(p50_us) / 1e3,
        p99_ms: as_f64(p99_us) / 1e3,
    })
}
