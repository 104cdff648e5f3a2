//! One writing process per folder: the kernel's lock, which a killed process cannot leave behind.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use super::recover::OpenError;

/// A process that is started while the lock is held has it too until it runs its own program, so a lock that was just
/// let go may look taken for a moment.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(10);

/// Held as long as the value lives.
#[derive(Debug)]
pub(super) struct FolderLock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl FolderLock {
    pub(super) fn take(folder: &Path) -> Result<Self, OpenError> {
        let path = folder.join("lock");
        let io = |source| OpenError::Io { action: "lock", path: path.display().to_string(), source };
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
        match try_for_a_moment(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(OpenError::Locked { folder: folder.display().to_string(), pid: pid.trim().to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self(file))
    }
}

fn try_for_a_moment(file: &File) -> Result<(), TryLockError> {
    for _ in 1..TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN),
            taken_or_failed => return taken_or_failed,
        }
    }
    file.try_lock()
}
