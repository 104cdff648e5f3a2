//! A line on a terminal that says what a command waits for, once it takes longer than a second.
//!
//! On standard error, and only where that is a terminal; it is gone when the command has its answer. A pipe sees nothing.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Nobody wonders before.
const AFTER: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(500);

/// Returns to the line's begin and clears it.
const CLEAR: &str = "\r\x1b[K";

/// Shows the line until dropped.
#[derive(Debug)]
pub(super) struct Progress {
    is_over: Arc<(Mutex<bool>, Condvar)>,
    line: Option<JoinHandle<()>>,
}

impl Progress {
    /// `what` such as `folding the log`.
    pub fn begin(what: &'static str) -> Self {
        let is_over = Arc::new((Mutex::new(false), Condvar::new()));
        let shown = Arc::clone(&is_over);
        let line = io::stderr().is_terminal().then(|| std::thread::spawn(move || show(what, &shown)));
        Self { is_over, line }
    }

    /// The same where the results themselves do not go to the terminal.
    pub fn beside_results(what: &'static str) -> Option<Self> {
        (!io::stdout().is_terminal()).then(|| Self::begin(what))
    }
}

fn show(what: &str, (is_over, ended): &(Mutex<bool>, Condvar)) {
    let began = Instant::now();
    let mut is_over = is_over.lock();
    let (mut wait, mut is_shown) = (AFTER, false);
    while !*is_over {
        let timed_out = ended.wait_for(&mut is_over, wait).timed_out();
        if timed_out && !*is_over {
            // A terminal that is gone is nobody to tell.
            let _gone = write!(io::stderr(), "{CLEAR}{what} … {} s", began.elapsed().as_secs());
            (wait, is_shown) = (EVERY, true);
        }
    }
    if is_shown {
        let _gone = write!(io::stderr(), "{CLEAR}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *self.is_over.0.lock() = true;
        self.is_over.1.notify_all();
        if let Some(line) = self.line.take() {
            let _panicked = line.join();
        }
    }
}
