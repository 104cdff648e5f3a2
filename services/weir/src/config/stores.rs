//! Which stores fit together: those of one process, or those of roles apart.
//!
//! Between the two there is nothing that works. Counters in the memory of one gateway are not those of another, a log in
//! a folder is one process's, and a process that owns its folder has no use for servers.

use weir_domain::quota::BookOptions;
use weir_ledger::CqlOptions;
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
use weir_quota::redis::RedisOptions;
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
use weir_streams::kafka::KafkaOptions;

use super::{Config, ConfigError, ConfigProblem};

/// The stores of roles apart.
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoresApart {
    pub kafka: KafkaOptions,
    pub cql: CqlOptions,
    /// Of the control store.
    pub control: CqlOptions,
    pub redis: RedisOptions,
}

impl Config {
    /// For all roles in one process.
    ///
    /// # Errors
    /// [`ConfigError::Problem`], where a server is configured.
    pub fn check_embedded(&self) -> Result<(), ConfigError> {
        let servers = [
            ("ledger.cql", self.ledger.cql.is_some()),
            ("control.cql", self.control.cql.is_some()),
            #[cfg(feature = "kafka")]
            ("log.kafka", self.log.kafka.is_some()),
            #[cfg(feature = "redis")]
            ("quota.redis", self.quota.redis.is_some()),
        ];
        match servers.into_iter().find(|(_, is_configured)| *is_configured) {
            None => Ok(()),
            Some((field, _)) => Err(problem(
                field,
                "`weir up` keeps everything in its data folder",
                "leave it out, or run `weir gateway`, `weir ledger`, `weir reconciler` and `weir control`",
            )),
        }
    }

    /// For a role in a process of its own.
    ///
    /// # Errors
    /// [`ConfigError::Problem`], where a store is one process's, or a secret is.
    #[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
    pub fn check_apart(&self) -> Result<StoresApart, ConfigError> {
        let missing = |field, what| move || problem(field, what, "add it: roles apart share their stores");
        let kafka = self.log.kafka.clone();
        let kafka = kafka.ok_or_else(missing("log.kafka", "a log in a folder is one process's"))?;
        let cql = self.ledger.cql.clone();
        let cql = cql.ok_or_else(missing("ledger.cql", "a ledger in a file is one process's"))?;
        let control = self.control_cql().cloned().unwrap_or_else(|| cql.clone());
        let redis = self.quota.redis.clone();
        let redis = redis.ok_or_else(missing("quota.redis", "counters in memory are one gateway's"))?;
        let secrets = [
            ("secrets.pepper", self.secrets.pepper.is_some(), "every role must hash keys alike"),
            ("secrets.master_key", self.secrets.master_key.is_some(), "every role must open the same policy"),
        ];
        match secrets.into_iter().find(|(_, is_set, _)| !is_set) {
            None => Ok(StoresApart { kafka, cql, control, redis }),
            Some((field, _, why)) => Err(problem(field, why, "write a reference to it, such as \"file:PATH\"")),
        }
    }

    /// The keyspace of the control store: its own, or the ledger's. `None`: a file in the data folder.
    #[must_use]
    pub fn control_cql(&self) -> Option<&CqlOptions> {
        self.control.cql.as_ref().or(self.ledger.cql.as_ref())
    }

    /// How the books of this installation are kept, wherever the counters are.
    #[must_use]
    pub fn book(&self) -> BookOptions {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.quota.redis {
            return BookOptions { retry_horizon_ms: super::ms(redis.retry_horizon) };
        }
        self.quota.book()
    }
}

fn problem(field: &str, problem: &str, fix: &str) -> ConfigError {
    let (place, field) = ("configuration".to_owned(), field.to_owned());
    ConfigError::Problem(ConfigProblem { place, field, problem: problem.to_owned(), fix: fix.to_owned() })
}

#[cfg(test)]
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
mod tests {
    use super::*;
    use crate::config::Environment;

    const SERVERS: [&str; 3] = ["[log.kafka]", "[ledger.cql]", "[quota.redis]"];
    const SECRETS: [&str; 2] = ["pepper = \"env:PEPPER\"", "master_key = \"env:MASTER\""];

    fn config(servers: &[&str], secrets: &[&str]) -> Config {
        let text = format!("{}\n[secrets]\n{}", servers.join("\n"), secrets.join("\n"));
        Config::from_text("weir.toml", &text, &Environment::default()).unwrap()
    }

    #[test]
    fn one_process_has_its_folder_and_roles_apart_have_servers() {
        let (one, apart) = (config(&[], &[]), config(&SERVERS, &SECRETS));
        assert!(one.check_embedded().is_ok() && apart.check_apart().is_ok());
        for (number, field) in ["log.kafka", "ledger.cql", "quota.redis"].into_iter().enumerate() {
            let only = config(&SERVERS[number..=number], &SECRETS);
            let refused = only.check_embedded().unwrap_err().to_string();
            assert!(
                refused.contains(&format!(" {field}: `weir up` keeps everything in its data folder; ")),
                "{refused}"
            );
            let others: Vec<&str> =
                SERVERS.into_iter().enumerate().filter(|(at, _)| *at != number).map(|(_, s)| s).collect();
            let refused = config(&others, &SECRETS).check_apart().unwrap_err().to_string();
            assert!(refused.contains(field) && refused.contains("add it"), "{refused}");
        }
    }

    #[test]
    fn the_control_store_is_with_the_ledger_unless_it_has_a_keyspace_of_its_own() {
        let with_ledger = config(&["[log.kafka]", "[ledger.cql]\nkeyspace = \"both\"", "[quota.redis]"], &SECRETS);
        assert_eq!(with_ledger.check_apart().unwrap().control.keyspace, "both");
        let own = ["[log.kafka]", "[ledger.cql]", "[quota.redis]", "[control.cql]\nkeyspace = \"own\""];
        let own = config(&own, &SECRETS).check_apart().unwrap();
        assert_eq!((own.control.keyspace.as_str(), own.cql.keyspace.as_str()), ("own", "weir"));
        let refused = config(&["[control.cql]"], &[]).check_embedded().unwrap_err().to_string();
        assert!(refused.contains(" control.cql: `weir up` keeps everything in its data folder; "), "{refused}");
        assert_eq!(config(&[], &[]).control_cql(), None);
    }

    #[test]
    fn roles_apart_have_their_secrets_in_common() {
        let refused = |secrets| config(&SERVERS, secrets).check_apart().unwrap_err().to_string();
        assert!(refused(&SECRETS[1..]).contains("secrets.pepper"));
        assert!(refused(&SECRETS[..1]).contains("secrets.master_key"));
    }

    #[test]
    fn books_live_as_long_as_the_store_that_keeps_them() {
        let apart = config(&["[quota.redis]\nretry_horizon = \"2h\""], &[]);
        assert_eq!(apart.book().retry_horizon_ms, 7_200_000);
        assert_eq!(config(&[], &[]).book().retry_horizon_ms, 600_000);
    }
}
