//! A disk that does as a test says: holds syncs, runs full, fails.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::PATIENCE;
use crate::segment::{Disk, SystemDisk};

/// A real disk behind gates that a test opens and shuts.
#[derive(Debug)]
pub struct FaultyDisk {
    holds: Mutex<bool>,
    released: Condvar,
    /// Bytes that may still be written before the disk is full.
    room_bytes: AtomicU64,
    sync_fails: AtomicBool,
    syncs: AtomicU64,
}

impl Default for FaultyDisk {
    fn default() -> Self {
        Self {
            holds: Mutex::new(false),
            released: Condvar::new(),
            room_bytes: u64::MAX.into(),
            sync_fails: false.into(),
            syncs: 0.into(),
        }
    }
}

impl FaultyDisk {
    /// Every sync from now on waits until [`FaultyDisk::release_syncs`].
    pub fn hold_syncs(&self) {
        *self.holds.lock() = true;
    }

    pub fn release_syncs(&self) {
        *self.holds.lock() = false;
        self.released.notify_all();
    }

    /// The write that goes beyond `bytes` more writes what fits and fails, as a real disk does.
    pub fn fill_after(&self, bytes: u64) {
        self.room_bytes.store(bytes, Ordering::SeqCst);
    }

    pub fn fail_syncs(&self) {
        self.sync_fails.store(true, Ordering::SeqCst);
    }

    /// How many syncs were asked for.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::SeqCst)
    }
}

impl Disk for FaultyDisk {
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        let room = self.room_bytes.load(Ordering::SeqCst);
        if room >= bytes.len() as u64 {
            if room != u64::MAX {
                self.room_bytes.store(room - bytes.len() as u64, Ordering::SeqCst);
            }
            return SystemDisk.write(file, bytes);
        }
        self.room_bytes.store(0, Ordering::SeqCst);
        SystemDisk.write(file, &bytes[..usize::try_from(room).unwrap_or(0)])?;
        Err(io::ErrorKind::StorageFull.into())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let mut holds = self.holds.lock();
        // Bounded, so that a test that fails while it holds ends nevertheless.
        while *holds && !self.released.wait_for(&mut holds, PATIENCE).timed_out() {}
        drop(holds);
        if self.sync_fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("the test said so"));
        }
        SystemDisk.sync(file)
    }
}
