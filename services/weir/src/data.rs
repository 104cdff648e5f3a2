//! The data folder: what of a process survives it, and where.
//!
//! ```text
//!   log/            the event log: the truth; its lock keeps a second process out
//!   ledger.sqlite   derived from the log: lines, attempts, positions, checkpoints
//!   control.sqlite  catalog, keys by hash, snapshots
//!   secrets/        pepper, master.key, admin.token: made once, mode 0600
//!   *.url           where the running process listens, for commands and scripts; gone when it stops
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What a running process tells beside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Url {
    Gateway,
    Admin,
    Stub,
}

impl Url {
    const ALL: [Self; 3] = [Self::Gateway, Self::Admin, Self::Stub];

    const fn file(self) -> &'static str {
        match self {
            Self::Gateway => "gateway.url",
            Self::Admin => "admin.url",
            Self::Stub => "stub.url",
        }
    }
}

/// Why there is no data folder. Says what to do.
#[derive(Debug, Error)]
pub enum DataError {
    #[error("the data folder {} cannot be made: {source}; choose another with --data", path.display())]
    Uncreatable { path: PathBuf, source: io::Error },
    #[error(
        "the data folder {} cannot be written: {source}; give this user write access, or choose another with --data",
        path.display()
    )]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("there is no data folder {}: name the one of the running process with --data", path.display())]
    Missing { path: PathBuf },
}

/// The folder of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFolder(PathBuf);

impl DataFolder {
    /// For the process that owns it: makes the folder (mode 0700) where it is not there, and proves that it takes files.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn prepare(path: &Path) -> Result<Self, DataError> {
        let folder = Self(path.to_owned());
        for path in [&folder.0, &folder.secrets()] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|source| DataError::Uncreatable { path: path.clone(), source })?;
        }
        let probe = folder.0.join(".writable");
        let proved = fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe));
        proved.map_err(|source| DataError::Unwritable { path: folder.0.clone(), source })?;
        Ok(folder)
    }

    /// For a command beside that process.
    ///
    /// # Errors
    /// [`DataError::Missing`].
    pub fn existing(path: &Path) -> Result<Self, DataError> {
        let folder = Self(path.to_owned());
        if folder.secrets().is_dir() { Ok(folder) } else { Err(DataError::Missing { path: path.to_owned() }) }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger.sqlite")
    }

    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.0.join("control.sqlite")
    }

    #[must_use]
    pub fn secrets(&self) -> PathBuf {
        self.0.join("secrets")
    }

    #[must_use]
    pub fn secret(&self, name: &str) -> PathBuf {
        self.secrets().join(name)
    }

    /// Tells where the process listens. Replaced in one step, so that a reader never sees half an address.
    ///
    /// # Errors
    /// [`DataError::Unwritable`].
    pub fn tell(&self, url: Url, text: &str) -> Result<(), DataError> {
        let (path, fresh) = (self.0.join(url.file()), self.0.join(format!("{}.new", url.file())));
        let written = fs::write(&fresh, format!("{text}\n"))
            .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)))
            .and_then(|()| fs::rename(&fresh, &path));
        written.map_err(|source| DataError::Unwritable { path, source })
    }

    /// What a running process has told, if there is one.
    #[must_use]
    pub fn told(&self, url: Url) -> Option<String> {
        fs::read_to_string(self.0.join(url.file())).ok().map(|text| text.trim().to_owned())
    }

    /// Takes back what was told. What cannot be removed is only out of date.
    pub fn forget(&self) {
        Url::ALL.into_iter().for_each(|url| self.forget_one(url));
    }

    /// The same for one address.
    pub fn forget_one(&self, url: Url) {
        let path = self.0.join(url.file());
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), error = %error, "address file not removed");
        }
    }
}
