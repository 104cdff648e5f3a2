//! What no single field can say: bounds, and fields that must fit each other.

use weir_runtime::units::HumanDuration;

use super::Config;

/// More threads than any machine has cores is a slip of the finger.
const MOST_WORKER_THREADS: usize = 1024;

/// A field, what is wrong with it, and what to write instead.
pub(super) type Mistake = (&'static str, String, String);

/// The first mistake, if there is one.
pub(super) fn check(config: &Config) -> Result<(), Mistake> {
    let rules =
        [threads, admin_address, certificate, region, renewal, drain, same_lease, patience, segments, nothing_is_zero];
    rules.iter().try_for_each(|rule| rule(config))
}

fn threads(config: &Config) -> Result<(), Mistake> {
    match config.process.worker_threads {
        Some(0) | Some(MOST_WORKER_THREADS..) => fail(
            "process.worker_threads",
            "it is not between 1 and 1023".to_owned(),
            "leave it out for one thread per core",
        ),
        Some(_) | None => Ok(()),
    }
}

fn admin_address(config: &Config) -> Result<(), Mistake> {
    let address = config.listen.admin;
    if address.ip().is_loopback() {
        return Ok(());
    }
    fail(
        "listen.admin",
        format!("{address} is no loopback address, and the admin API speaks plain HTTP"),
        "listen on 127.0.0.1, and reach it through a tunnel",
    )
}

fn certificate(config: &Config) -> Result<(), Mistake> {
    match (&config.listen.certificate_file, &config.listen.key_file) {
        (Some(_), None) => {
            fail("listen.certificate_file", "there is no key to it".to_owned(), "set `key_file` in [listen] as well")
        }
        (None, Some(_)) => fail(
            "listen.key_file",
            "there is no certificate to it".to_owned(),
            "set `certificate_file` in [listen] as well",
        ),
        (Some(_), Some(_)) | (None, None) => Ok(()),
    }
}

fn region(config: &Config) -> Result<(), Mistake> {
    let region = &config.gateway.region;
    let is_name = (1..=64).contains(&region.len()) && region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_name {
        return Ok(());
    }
    fail("gateway.region", format!("`{region}` is no region"), "use 1 to 64 letters, digits and dashes")
}

/// One lost renewal must not lose the lease.
fn renewal(config: &Config) -> Result<(), Mistake> {
    let (lease, renew) = (config.gateway.lease, config.gateway.renew_every);
    if renew.as_ms() > 0 && renew.as_ms().saturating_mul(2) <= lease.as_ms() {
        return Ok(());
    }
    let problem = format!("a lease of {lease} has no room for two renewals, {renew} apart");
    fail("gateway.renew_every", problem, "make it a third of `lease`")
}

/// Nobody renews a lease while the process stops.
fn drain(config: &Config) -> Result<(), Mistake> {
    let (drain, lease, renew) = (config.listener.drain, config.gateway.lease, config.gateway.renew_every);
    let left = HumanDuration::from_ms(lease.as_ms().saturating_sub(renew.as_ms()));
    if drain.as_ms() <= left.as_ms() {
        return Ok(());
    }
    let problem = format!("a stream may go on for {drain} after the stop began, but its lease ends after {left}");
    fail("listener.drain", problem, "make it shorter, or `lease` in [gateway] longer")
}

fn same_lease(config: &Config) -> Result<(), Mistake> {
    let (gateway, reconciler) = (config.gateway.lease, config.reconciler.lease);
    if gateway == reconciler {
        return Ok(());
    }
    let problem = format!("the reconciler takes leases of {reconciler} for granted, the gateway gives {gateway}");
    fail("reconciler.lease", problem, "write the same duration in both sections")
}

/// A gateway that does not answer may act on what it heard for two seconds, and its log may be busy.
fn patience(config: &Config) -> Result<(), Mistake> {
    const SHORTEST: HumanDuration = HumanDuration::from_secs(5);
    let patience = config.reconciler.rebuild_patience;
    if patience.as_ms() >= SHORTEST.as_ms() {
        return Ok(());
    }
    let problem = format!("within {patience} a gateway that is merely busy is taken for absent");
    fail("reconciler.rebuild_patience", problem, "write 5s or more")
}

fn segments(config: &Config) -> Result<(), Mistake> {
    const SMALLEST_SEGMENT_BYTES: u64 = 64 * 1024;
    if config.log.segment.bytes() >= SMALLEST_SEGMENT_BYTES {
        return Ok(());
    }
    fail("log.segment", "it is smaller than 64KiB".to_owned(), "write for example \"64MiB\"")
}

fn nothing_is_zero(config: &Config) -> Result<(), Mistake> {
    let bounds = [
        ("listener.max_connections", config.listener.max_connections == 0, "16384"),
        ("ledger.checkpoint_events", config.ledger.checkpoint_events == 0, "200000"),
        ("ledger.checkpoints_kept", config.ledger.checkpoints_kept == 0, "3"),
        ("gateway.max_body", config.gateway.max_body.bytes() == 0, "\"32MiB\""),
        ("gateway.max_bodies", config.gateway.max_bodies.bytes() == 0, "\"512MiB\""),
        ("reconciler.reservations_per_round", config.reconciler.reservations_per_round == 0, "512"),
    ];
    match bounds.into_iter().find(|(_, is_zero, _)| *is_zero) {
        None => Ok(()),
        Some((field, _, example)) => {
            fail(field, "with 0 nothing would ever be done".to_owned(), &format!("write for example {example}"))
        }
    }
}

fn fail(field: &'static str, problem: String, fix: &str) -> Result<(), Mistake> {
    Err((field, problem, fix.to_owned()))
}
