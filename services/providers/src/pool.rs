//! Idle connections of one origin.
//!
//! The one used last is taken first: it is warm, and what is surplus grows old at the other end and is closed. A
//! connection that the provider closed meanwhile is noticed when it is taken, before a byte is written (O48).

use std::collections::VecDeque;
use std::time::Duration;

use http::Uri;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::connection::Connection;

/// A scheme, host and port.
#[derive(Debug)]
pub(crate) struct Origin {
    pub uri: Uri,
    /// The `host` header: the authority without a port that its scheme implies.
    pub host: Box<str>,
    idle: Mutex<VecDeque<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    since: Instant,
}

impl Origin {
    pub(crate) fn new(uri: &Uri) -> Self {
        let authority = uri.authority().map_or("", http::uri::Authority::as_str);
        let implied = if uri.scheme_str() == Some("https") { ":443" } else { ":80" };
        let host = authority.strip_suffix(implied).unwrap_or(authority).into();
        Self { uri: uri.clone(), host, idle: Mutex::default() }
    }

    /// An idle connection that still seems to live.
    pub(crate) fn take(&self, idle_timeout: Duration) -> Option<Box<Connection>> {
        loop {
            let Idle { mut connection, since } = self.idle.lock().pop_back()?;
            if since.elapsed() < idle_timeout && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next call. Beyond `most` the oldest is closed.
    pub(crate) fn keep(&self, connection: Box<Connection>, most: usize, idle_timeout: Duration) {
        let surplus = {
            let mut idle = self.idle.lock();
            idle.push_back(Idle { connection, since: Instant::now() });
            let is_surplus =
                idle.len() > most || idle.front().is_some_and(|oldest| oldest.since.elapsed() >= idle_timeout);
            if is_surplus { idle.pop_front() } else { None }
        };
        // Closing is a system call: not under the lock.
        drop(surplus);
    }

    /// Closes what was idle for too long.
    pub(crate) fn sweep(&self, idle_timeout: Duration) {
        let mut idle = self.idle.lock();
        let living = idle.partition_point(|idle| idle.since.elapsed() >= idle_timeout);
        let dead: Vec<Idle> = idle.drain(..living).collect();
        drop(idle);
        drop(dead);
    }

    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.idle.lock().len()
    }
}
