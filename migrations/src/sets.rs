//! Which files belong to which database, in their order.
//!
//! The files are compiled in, so that a binary never meets another binary's files. A new file is a new last line here;
//! a test compares the lists with the folders.

/// A numbered file. Its number is its position in the set, from one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    /// Relative to `migrations/`, such as `control/0001_control.sql`.
    pub file: &'static str,
    pub sql: &'static str,
}

macro_rules! migrations {
    ($($file:literal),* $(,)?) => {
        &[$(Migration { file: $file, sql: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)) }),*]
    };
}

const CONTROL: &[Migration] =
    migrations!["control/0001_control.sql", "control/0002_tenant_calendars.sql", "control/0003_keys_of_tenant.sql",];

const LEDGER: &[Migration] = migrations!["ledger/0001_ledger.sql"];

#[cfg(feature = "cql")]
const CONTROL_CQL: &[Migration] = migrations!["control/0001_control.cql"];

#[cfg(feature = "cql")]
const LEDGER_CQL: &[Migration] = migrations!["ledger/0001_ledger.cql"];

/// The schema of one keyspace, which the processes of several machines share.
#[cfg(feature = "cql")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CqlSet {
    /// As [`Set::Control`].
    Control,
    /// As [`Set::Ledger`].
    Ledger,
}

#[cfg(feature = "cql")]
impl CqlSet {
    pub const ALL: [Self; 2] = [Self::Control, Self::Ledger];

    /// The folder of its files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Ledger => "ledger",
        }
    }

    pub(crate) const fn migrations(self) -> &'static [Migration] {
        match self {
            Self::Control => CONTROL_CQL,
            Self::Ledger => LEDGER_CQL,
        }
    }
}

/// One database's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Set {
    /// Tenants, keys, catalogs and snapshots: weir-control's.
    Control,
    /// Ledger lines, consumer positions, checkpoints and the index of events: weir-ledger's.
    Ledger,
}

impl Set {
    pub const ALL: [Self; 2] = [Self::Control, Self::Ledger];

    /// The folder of its files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Ledger => "ledger",
        }
    }

    pub(crate) const fn migrations(self) -> &'static [Migration] {
        match self {
            Self::Control => CONTROL,
            Self::Ledger => LEDGER,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_set_lists_exactly_the_files_of_its_folder_numbered_from_one() {
        for set in Set::ALL {
            lists_its_folder(set.as_str(), ".sql", set.migrations());
        }
        #[cfg(feature = "cql")]
        for set in CqlSet::ALL {
            lists_its_folder(set.as_str(), ".cql", set.migrations());
        }
    }

    fn lists_its_folder(name: &str, ending: &str, migrations: &[Migration]) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let mut found: Vec<String> = std::fs::read_dir(&folder)
            .map(|entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        found.retain(|file| file.ends_with(ending));
        found.sort();
        let found: Vec<String> = found.iter().map(|file| format!("{name}/{file}")).collect();
        let listed: Vec<&str> = migrations.iter().map(|migration| migration.file).collect();
        assert_eq!(found, listed, "sets.rs and {}", folder.display());
        for (position, file) in listed.iter().enumerate() {
            let prefix = format!("{name}/{:04}_", position + 1);
            assert!(file.starts_with(&prefix), "{file} should start with {prefix}");
        }
    }
}
