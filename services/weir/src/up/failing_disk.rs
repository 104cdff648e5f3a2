//! The disk under the event log with named places where a test kills the process or lets a call fail.
//!
//! Only in a build with `failpoints`: the log itself knows nothing of them, because its disk is a seam anyway. A torn
//! write is one of which only the first half came: what a power loss leaves, and a kill in the middle of a large write.

use std::fs::File;
use std::io;
use std::path::Path;

use weir_runtime::failpoint;
use weir_streams::segment::{Disk, SystemDisk};

/// How a segment begins and ends (`weir_streams::segment`): by these a rotation is told from the frames.
const HEADER: &[u8] = b"WEIRSEG\n";
const FOOTER: &[u8] = b"\nWEIREND";

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FailingDisk(SystemDisk);

impl Disk for FailingDisk {
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        let [before, torn, after] = if bytes.starts_with(HEADER) {
            ["rotation.before_header", "rotation.torn_header", "rotation.after_header"]
        } else if bytes.ends_with(FOOTER) {
            ["rotation.before_footer", "rotation.torn_footer", "rotation.after_footer"]
        } else {
            ["log.before_write", "log.torn_write", "log.after_write"]
        };
        refuse("log.read_only", io::ErrorKind::ReadOnlyFilesystem)?;
        refuse(before, io::ErrorKind::StorageFull)?;
        // A kill strikes inside `hit`, so the half must be there before it; where nothing strikes, the rest follows.
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        self.0.write(file, first)?;
        refuse(torn, io::ErrorKind::StorageFull)?;
        self.0.write(file, rest)?;
        refuse(after, io::ErrorKind::Other)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        refuse("log.before_sync", io::ErrorKind::Other)?;
        self.0.sync(file)?;
        refuse("log.after_sync", io::ErrorKind::Other)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        refuse("rotation.before_folder_sync", io::ErrorKind::Other)?;
        self.0.sync_folder(folder)?;
        refuse("rotation.after_folder_sync", io::ErrorKind::Other)
    }
}

fn refuse(point: &'static str, kind: io::ErrorKind) -> io::Result<()> {
    if failpoint::hit(point) { Err(io::Error::from(kind)) } else { Ok(()) }
}
