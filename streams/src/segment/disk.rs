//! The calls through which bytes reach a disk, as a seam: tests hold a sync for a second or fill the disk here.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// What the log asks of a disk.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Appends all bytes. When it returns, a killed process cannot lose them. On an error a part may be in the file.
    ///
    /// # Errors
    /// Of the system.
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()>;

    /// When it returns, a power loss cannot lose what was written to the file before.
    ///
    /// # Errors
    /// Of the system. After one, nothing may be assumed about what was written: the kernel may have dropped it.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// When it returns, a power loss cannot lose the names of the files in the folder.
    ///
    /// # Errors
    /// Of the system.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

/// The real one.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn write(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}
