//! The last good snapshot on disk: with it a gateway starts while control plane and log are away.
//!
//! One JSON value a line, the head first, then each part. Nothing in it is a secret in plain text; it is readable by its
//! owner alone all the same, because it says who the tenants are.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use weir_schemas::snapshot::SnapshotPublished;

use super::parts::{Parts, PartsError};
use crate::secrets::MasterKey;

/// What the file has; `None` where there is none. A file that cannot be read is no reason not to start.
pub(super) fn read(path: &Path, master: &MasterKey) -> Option<Parts> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        file => file,
    };
    let parts = file.and_then(|file| read_lines(BufReader::new(file), master));
    match parts {
        Ok(parts) if parts.is_whole() => Some(parts),
        Ok(_) => {
            tracing::warn!(path = %path.display(), "the last good snapshot on disk is not whole and is passed over");
            None
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the last good snapshot on disk cannot be read");
            None
        }
    }
}

fn read_lines(file: impl io::BufRead, master: &MasterKey) -> io::Result<Parts> {
    let mut parts = Parts::default();
    for line in file.lines() {
        let (scope, body): (String, String) = serde_json::from_str(&line?)?;
        let taken = parts.take(SnapshotPublished::new(scope, 0, 0, body), master);
        taken.map_err(|error: PartsError| io::Error::other(error))?;
    }
    Ok(parts)
}

/// Puts `parts` in the file's place, in one step.
pub(super) fn write(path: &Path, parts: &Parts) -> io::Result<()> {
    let Some(head) = parts.head() else { return Ok(()) };
    let head = head.record().map_err(io::Error::other)?;
    let fresh = path.with_extension("new");
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    let mut out = BufWriter::new(file);
    let lines = std::iter::once((head.scope.as_str(), head.body.as_str())).chain(parts.of_head());
    for line in lines {
        serde_json::to_writer(&mut out, &line)?;
        out.write_all(b"\n")?;
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&fresh, path)
}
