//! The driver of a cluster, and a new one where it answers nothing any more.
//!
//! The driver (`redis` 1.8) holds the lock of its map of nodes while it asks for the slots again, and polls neither requests
//! nor reconnections meanwhile. One of those that waits for the lock may be given it in that moment, and then never runs:
//! from there on every call to every node times out, for good. A promotion under load does that. So timeouts alone, for
//! longer than any node takes to be promoted or to answer, mean a new driver. What the stuck one holds is not freed: a
//! task and its sockets a time.

use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::ConnectionLike as _;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::RoutingInfo;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

/// Silence is longer than so many calls may take, one after the other: a node that is only slow answers one of them.
const SILENT_CALLS: u32 = 3;

pub(super) struct Cluster {
    client: ClusterClient,
    longest_silence: Duration,
    driver: Mutex<Driver>,
}

struct Driver {
    /// Clones share its connections.
    connection: ClusterConnection,
    /// What a call says that began with an earlier one is not about this one.
    number: u64,
    silence: Silence,
}

impl Cluster {
    /// Connects when it is first needed. `respond` bounds a call.
    pub(super) fn new(client: ClusterClient, respond: Duration) -> Self {
        let connection = connection(&client);
        let driver = Driver { connection, number: 0, silence: Silence::default() };
        Self { client, longest_silence: respond * SILENT_CALLS, driver: Mutex::new(driver) }
    }

    /// To wherever its key lies.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let (mut connection, number) = self.current();
        let answer = connection.req_packed_command(command).await;
        self.note(number, &answer);
        answer
    }

    pub(super) async fn route(&self, command: &Cmd, to: RoutingInfo) -> Result<Value, RedisError> {
        let (mut connection, number) = self.current();
        let answer = connection.route_command(command.clone(), to).await;
        self.note(number, &answer);
        answer
    }

    fn current(&self) -> (ClusterConnection, u64) {
        let driver = self.driver.lock();
        (driver.connection.clone(), driver.number)
    }

    fn note(&self, number: u64, answer: &Result<Value, RedisError>) {
        let is_timeout = answer.as_ref().is_err_and(RedisError::is_timeout);
        let mut driver = self.driver.lock();
        if driver.number != number || !driver.silence.is_over(is_timeout, Instant::now(), self.longest_silence) {
            return;
        }
        tracing::warn!(silence = ?self.longest_silence, "no node of the quota store answers: a new driver takes over");
        let next = connection(&self.client);
        *driver = Driver { connection: next, number: number + 1, silence: Silence::default() };
    }
}

fn connection(client: &ClusterClient) -> ClusterConnection {
    client.get_pending_async_connection_with_config(ClusterConfig::new())
}

/// Since when there were only timeouts.
#[derive(Debug, Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// A refused connection, an error of a node: somebody is there, so it begins anew.
    fn is_over(&mut self, is_timeout: bool, now: Instant, longest: Duration) -> bool {
        if !is_timeout {
            self.since = None;
            return false;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) >= longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_timeouts_for_long_enough_are_silence() {
        let (began, longest) = (Instant::now(), Duration::from_secs(3));
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut silence = Silence::default();
        let notes = [
            (0, true, false),
            (2, true, false),
            // Somebody answered.
            (2, false, false),
            (3, true, false),
            (5, true, false),
            (6, true, true),
        ];
        for (second, is_timeout, is_over) in notes {
            assert_eq!(silence.is_over(is_timeout, at(second), longest), is_over, "second {second}");
        }
    }
}
