//! How far each topic of a spool is in Kafka: a small file, replaced in one step.
//!
//! It is not synced. What it loses is forwarded once more, and copies are harmless.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::topics::Topic;

const NAME: &str = "forwarded";
const HEAD: &str = "weir-spool-forwarded 1";

/// Offsets by [`Topic::index`]: everything below is confirmed by the brokers.
pub(super) type Offsets = [u64; Topic::COUNT];

/// The offsets as they were last written. A file that is not there, or is not whole, says zero: everything is forwarded
/// again.
pub(super) fn read(folder: &Path) -> io::Result<Offsets> {
    let mut offsets = [0; Topic::COUNT];
    let text = match fs::read_to_string(folder.join(NAME)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(offsets),
        Err(error) => return Err(error),
    };
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        tracing::warn!(folder = %folder.display(), "the spool does not know how far it was forwarded: all goes again");
        return Ok(offsets);
    }
    for line in lines {
        let read = line
            .split_once(' ')
            .and_then(|(topic, offset)| Some((Topic::by_suffix(topic)?, offset.parse::<u64>().ok()?)));
        if let Some((topic, offset)) = read {
            offsets[topic.index()] = offset;
        }
    }
    Ok(offsets)
}

pub(super) fn write(folder: &Path, offsets: &Offsets) -> io::Result<()> {
    let lines = Topic::ALL.iter().map(|topic| format!("{topic} {}\n", offsets[topic.index()]));
    let text = std::iter::once(format!("{HEAD}\n")).chain(lines).collect::<String>();
    let (next, name): (PathBuf, PathBuf) = (folder.join("forwarded.next"), folder.join(NAME));
    fs::write(&next, text)?;
    fs::rename(next, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_anything_else_is_zero() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), [0; Topic::COUNT]);
        let mut offsets = [0; Topic::COUNT];
        offsets[Topic::Operations.index()] = 42;
        write(folder.path(), &offsets).unwrap();
        assert_eq!(read(folder.path()).unwrap(), offsets);
        fs::write(folder.path().join(NAME), "reservations 7\n").unwrap();
        assert_eq!(read(folder.path()).unwrap(), [0; Topic::COUNT]);
    }
}
