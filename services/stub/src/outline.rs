//! The order of a stream's events: runs of like ones, so that a stream of any length is a few words.
//!
//! Which runs an answer has is the dialect's to say; what the runs are made of is shared, so that a script's faults strike
//! at the same place in every dialect: after so many pieces of thinking, text or tool calls.

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Says that there is an answer; nothing of it is generated yet.
    Opening,
    /// A sign of life.
    Ping,
    /// Opens an item whose pieces follow. A tool call has none: its first piece says its name.
    Start(Item),
    /// A piece of what was generated.
    Piece(Item),
    End(Item),
    Finish,
    Usage,
    Done,
}

/// What an answer consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    Thinking,
    Text,
    Tool(usize),
}

/// One event: the `turn`-th of its run, the `sequence`-th of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) step: Step,
    pub(crate) turn: usize,
    pub(crate) sequence: usize,
}

/// Runs that are still to come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outline {
    runs: Vec<(Step, usize)>,
    run: usize,
    turn: usize,
    sequence: usize,
}

impl Outline {
    pub(crate) fn then(mut self, step: Step, times: usize) -> Self {
        if times > 0 {
            self.runs.push((step, times));
        }
        self
    }

    /// How many events carry something generated.
    pub(crate) fn pieces(&self) -> usize {
        self.runs.iter().filter(|(step, _)| matches!(step, Step::Piece(_))).map(|(_, times)| times).sum()
    }

    /// The number of the next event; that of the one which a fault replaces is one less.
    pub(crate) const fn sequence(&self) -> usize {
        self.sequence
    }

    pub(crate) fn next(&mut self) -> Option<Part> {
        let (step, times) = *self.runs.get(self.run)?;
        let part = Part { step, turn: self.turn, sequence: self.sequence };
        self.sequence += 1;
        self.turn += 1;
        if self.turn == times {
            self.run += 1;
            self.turn = 0;
        }
        Some(part)
    }
}
