//! The receipt of a batch whose place is only known once a broker has answered.
//!
//! It resolves when all records of the batch are acknowledged, when one of them failed, or, if the batch was put into
//! the spool meanwhile, when the spool has it: whichever comes first.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::append::{Counted, Stage};
use crate::contract::{AppendError, Placed, Position};

#[derive(Debug)]
pub(crate) struct Ticket {
    /// Of key and values: what the batch counts against the bound of what is outstanding.
    pub bytes: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// The offset is the least one acknowledged so far.
    placed: Placed,
    unanswered: u32,
    failure: Option<AppendError>,
    outcome: Option<Result<Placed, AppendError>>,
    spooled: Option<Counted>,
}

impl Ticket {
    /// For a batch of `count` records on one partition.
    pub fn new(at: Position, count: u32, bytes: usize) -> Self {
        let placed = Placed { first: Position { offset: u64::MAX, ..at }, count, in_spool: false };
        let state = State { placed, unanswered: count, failure: None, outcome: None, spooled: None };
        Self { bytes, state: Mutex::new(state), changed: Notify::new() }
    }

    /// One record was answered: its offset, or why there is none. True when it was the last one.
    pub fn answered(&self, answer: Result<u64, AppendError>) -> bool {
        let is_last = {
            let mut state = self.state.lock();
            match answer {
                Ok(offset) => state.placed.first.offset = state.placed.first.offset.min(offset),
                Err(error) => {
                    state.failure.get_or_insert(error);
                }
            }
            state.unanswered = state.unanswered.saturating_sub(1);
            let is_last = state.unanswered == 0;
            if is_last {
                let outcome = state.failure.take().map_or(Ok(state.placed), Err);
                state.outcome = Some(outcome);
            }
            is_last
        };
        if is_last {
            self.changed.notify_waiters();
        }
        is_last
    }

    /// The batch is also on its way into the spool.
    pub fn spooled(&self, counted: Counted) {
        self.state.lock().spooled = Some(counted);
        self.changed.notify_waiters();
    }

    /// What the brokers have said, if they have.
    pub fn outcome(&self) -> Option<Result<Placed, AppendError>> {
        self.state.lock().outcome.clone()
    }

    /// Resolves when the brokers have answered, whatever the spool says.
    pub async fn delivered(&self) -> Result<Placed, AppendError> {
        loop {
            let changed = self.changed.notified();
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            changed.await;
        }
    }

    pub async fn reached(&self, stage: Stage) -> Result<Placed, AppendError> {
        loop {
            let changed = self.changed.notified();
            let spooled = {
                let state = self.state.lock();
                if let Some(outcome) = &state.outcome {
                    return outcome.clone();
                }
                state.spooled.clone()
            };
            let Some(spooled) = spooled else {
                changed.await;
                continue;
            };
            tokio::select! {
                biased;
                () = changed => {}
                reached = spooled.reached(stage) => return reached.map_err(|error| match error {
                    // The brokers may still confirm it, but nobody waits for an answer that has no bound.
                    AppendError::Closed(closed) | AppendError::Unknown(closed) => AppendError::Unknown(closed),
                    AppendError::Empty
                    | AppendError::TooManyRecords { .. }
                    | AppendError::TooLarge { .. }
                    | AppendError::Busy { .. } => error,
                }),
            }
        }
    }
}
