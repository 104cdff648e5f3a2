//! An error with what caused it, in one line: for a log line, an answer to an operator, a place that keeps one text.
//!
//! Errors here say what they themselves know and leave the rest to their source, so whoever prints one alone hides why.
//! The writers of log lines print one alone.

use std::error::Error;
use std::fmt::Write as _;
use std::iter::successors;

/// `error: its cause: the cause of that`. A cause that is told already, because an error in front of it is transparent or
/// repeats it, is not told again.
#[must_use]
pub fn story(error: &dyn Error) -> String {
    let mut story = error.to_string();
    let causes = successors(error.source(), |&cause| cause.source());
    for cause in causes {
        let text = cause.to_string();
        if !story.contains(&text) {
            // Writing to a string cannot fail.
            let _written = write!(story, ": {text}");
        }
    }
    story
}

#[cfg(test)]
mod tests {
    use std::io;

    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    enum Outer {
        #[error("the log cannot be read")]
        Read(#[source] io::Error),
        #[error("the log cannot be read: {0}")]
        Repeats(#[source] io::Error),
        #[error(transparent)]
        Transparent(io::Error),
    }

    #[test]
    fn every_cause_is_told_once() {
        let broken = || io::Error::other("the disk is gone");
        for (error, expected) in [
            (Outer::Read(broken()), "the log cannot be read: the disk is gone"),
            (Outer::Repeats(broken()), "the log cannot be read: the disk is gone"),
            (Outer::Transparent(broken()), "the disk is gone"),
        ] {
            assert_eq!(story(&error), expected);
        }
    }
}
