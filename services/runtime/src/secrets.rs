//! Secrets as references, resolved at the moment of use (I6).
//!
//! Configuration holds `env:NAME` or `file:PATH`, never the secret, so that a printed configuration, a snapshot or an
//! error cannot leak one. A text that is neither is refused without being repeated: it may be the secret itself.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::entropy::Entropy;

/// Where a secret is. Printing it is safe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SecretRef {
    /// `env:NAME`: an environment variable of the process.
    Env(String),
    /// `file:PATH`: a file; one trailing line end is not part of the secret.
    File(PathBuf),
}

/// Far above any key or certificate; a reference to something larger is a mistake.
const LARGEST_SECRET_BYTES: u64 = 64 * 1024;

/// Why there is no secret. Names the reference, never the value.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("a secret is written as a reference, \"env:NAME\" or \"file:PATH\", never as the secret itself")]
    NotReference,
    #[error("{reference} is not set: export it for this process, or point the reference elsewhere")]
    NotSet { reference: SecretRef },
    #[error("{reference} is empty")]
    Empty { reference: SecretRef },
    #[error("{reference} is not UTF-8 text")]
    NotText { reference: SecretRef },
    #[error("{reference} is larger than {LARGEST_SECRET_BYTES} bytes, so it is not a secret")]
    TooLarge { reference: SecretRef },
    #[error("{reference} cannot be read")]
    Unreadable { reference: SecretRef, source: io::Error },
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
}

impl SecretRef {
    /// Reads the secret now. A caller that keeps the result also keeps it after a rotation.
    pub fn resolve(&self) -> Result<SecretString, SecretError> {
        let mut text = match self {
            Self::Env(name) => match std::env::var(name) {
                Ok(text) => text,
                Err(std::env::VarError::NotPresent) => return Err(SecretError::NotSet { reference: self.clone() }),
                Err(std::env::VarError::NotUnicode(_)) => return Err(SecretError::NotText { reference: self.clone() }),
            },
            Self::File(path) => self.read(path)?,
        };
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        if text.is_empty() {
            return Err(SecretError::Empty { reference: self.clone() });
        }
        Ok(SecretString::from(text))
    }

    fn read(&self, path: &Path) -> Result<String, SecretError> {
        let unreadable = |source| SecretError::Unreadable { reference: self.clone(), source };
        let size = fs::metadata(path).map_err(unreadable)?.len();
        if size > LARGEST_SECRET_BYTES {
            return Err(SecretError::TooLarge { reference: self.clone() });
        }
        let bytes = fs::read(path).map_err(unreadable)?;
        String::from_utf8(bytes).map_err(|_| SecretError::NotText { reference: self.clone() })
    }
}

impl FromStr for SecretRef {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<Self, SecretError> {
        match text.split_once(':') {
            Some(("env", name)) if is_variable_name(name) => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(PathBuf::from(path))),
            Some(_) | None => Err(SecretError::NotReference),
        }
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl Serialize for SecretRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for SecretRef {
    fn schema_name() -> Cow<'static, str> {
        "SecretRef".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^(env:[A-Za-z0-9_]+|file:.+)$",
            "examples": ["env:OPENAI_API_KEY"],
            "description": "where a secret is, \"env:NAME\" or \"file:PATH\"; never the secret itself"
        })
    }
}

/// Writes `bytes` to `path` with mode 0600, replacing what was there. A reader sees the old content or the new, never
/// a part, and after a return the new one survives a loss of power.
pub fn create_private_file(path: &Path, bytes: &[u8]) -> Result<(), SecretError> {
    let publish = |temporary: &Path| fs::rename(temporary, path);
    write_private(path, bytes, publish).map_err(|source| SecretError::Unwritable { path: path.to_owned(), source })
}

/// The secret in `path`; where there is none yet, `random_bytes` of entropy in hexadecimal are written there first
/// (mode 0600). Of several processes that start at once, one writes and all read the same.
pub fn read_or_create_secret(
    path: &Path,
    random_bytes: usize,
    entropy: &dyn Entropy,
) -> Result<SecretString, SecretError> {
    let reference = SecretRef::File(path.to_owned());
    let exists =
        path.try_exists().map_err(|source| SecretError::Unreadable { reference: reference.clone(), source })?;
    if !exists {
        let mut random = vec![0; random_bytes];
        entropy.fill(&mut random);
        // A link, unlike a rename, fails where another process was faster; then that one's secret is the secret.
        let publish = |temporary: &Path| match fs::hard_link(temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(temporary),
            linked => linked.and_then(|()| fs::remove_file(temporary)),
        };
        write_private(path, hex_line(&random).as_bytes(), publish)
            .map_err(|source| SecretError::Unwritable { path: path.to_owned(), source })?;
    }
    reference.resolve()
}

fn hex_line(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 1);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
    text.push('\n');
    text
}

fn write_private(path: &Path, bytes: &[u8], publish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    let mut tag = [0; 8];
    crate::entropy::OsEntropy.fill(&mut tag);
    let temporary = folder.join(format!(".{name}.{:016x}", u64::from_le_bytes(tag)));

    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| publish(&temporary));
    if written.is_err() {
        // The first error is the one to tell; a left-over temporary file harms nobody.
        let _removed = fs::remove_file(&temporary).is_ok();
    }
    written.and_then(|()| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
#[path = "secrets_tests.rs"]
mod tests;
