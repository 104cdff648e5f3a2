//! What the suite writes: tenants, teams, keys, catalogs and publications, by number, with every field set to something.

use std::collections::BTreeMap;
use std::error::Error;

use secrecy::SecretString;
use sha2::{Digest as _, Sha256};

use weir_domain::calendar::{Calendar, Zone};
use weir_domain::ids::{KeyId, TeamId, TenantId};
use weir_domain::price::PriceEntry;
use weir_domain::testing::{Dice, NOON_MS};

use crate::catalog::{Catalog, KeyHashText, TenantEntry};
use crate::document::price_version;
use crate::secrets::{AdminToken, ControlSecrets, MasterKey, Pepper, WrappedSecret};
use crate::state::{Change, KeyRecord, Origin, Publication, Revoked, State, TeamRecord, TenantRecord};

type Made<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The secrets of an installation whose pepper and master key are made of these letters.
///
/// # Errors
/// For none: a letter is repeated until it is long enough.
pub fn secrets(pepper: char, master: char) -> Made<ControlSecrets> {
    let secret = |letter: char| SecretString::from(letter.to_string().repeat(64));
    Ok(ControlSecrets {
        pepper: Pepper::new(&secret(pepper))?,
        master: MasterKey::new(&secret(master))?,
        admin_token: AdminToken::new(&secret('t'))?,
    })
}

/// The `n`th tenant.
#[must_use]
pub fn tenant(n: u64) -> TenantRecord {
    TenantRecord {
        id: TenantId::from(format!("tnt_{n:016}")),
        name: format!("tenant-{n}"),
        secret: WrappedSecret(Sha256::digest(n.to_be_bytes()).to_vec()),
        calendar: Calendar::new(Zone::UTC),
        created_at_ms: NOON_MS + n.cast_signed(),
    }
}

/// The `n`th team, of `tenant`.
#[must_use]
pub fn team(n: u64, tenant: &TenantRecord) -> TeamRecord {
    TeamRecord {
        id: TeamId::from(format!("team_{n:016}")),
        tenant: tenant.id.clone(),
        name: format!("team-{n}"),
        created_at_ms: NOON_MS - n.cast_signed(),
    }
}

/// The `n`th key, of `tenant`, with as little as a key may have.
#[must_use]
pub fn bare_key(n: u64, tenant: &TenantRecord) -> KeyRecord {
    KeyRecord {
        id: KeyId::from(format!("key_{n:016}")),
        hash: KeyHashText(Sha256::digest(format!("key {n}")).into()),
        prefix: String::new(),
        origin: Origin::File,
        name: format!("key-{n}"),
        tenant: tenant.id.clone(),
        team: None,
        models: None,
        labels: Vec::new(),
        created_at_ms: NOON_MS,
        expires_at_ms: None,
        revoked: None,
    }
}

/// The same with everything that a key can have.
#[must_use]
pub fn full_key(n: u64, tenant: &TenantRecord, team: &TeamRecord) -> KeyRecord {
    KeyRecord {
        prefix: "weir_live_abc".to_owned(),
        origin: Origin::Admin,
        team: Some(team.id.clone()),
        models: Some(vec!["fast".to_owned(), "größer \"x\"".to_owned()]),
        labels: vec![("env".to_owned(), "prod\n\u{1f600}".to_owned()), ("a".to_owned(), String::new())],
        created_at_ms: i64::MIN,
        expires_at_ms: Some(i64::MAX),
        revoked: Some(Revoked { at_ms: NOON_MS + 1, by: Origin::Admin }),
        ..bare_key(n, tenant)
    }
}

/// A catalog of the tenants with these numbers, and the change that applies it.
///
/// # Errors
/// For none: a catalog is JSON.
pub fn catalog(tenants: impl IntoIterator<Item = u64>) -> Made<Change> {
    let tenants: Vec<TenantEntry> = tenants.into_iter().map(|n| TenantEntry::named(&format!("tenant-{n}"))).collect();
    let catalog = Catalog { tenants, ..Catalog::default() };
    let content_sha256 = hex::encode(Sha256::digest(serde_json::to_vec(&catalog)?));
    let (catalog, file) = (Box::new(catalog), "catalog.toml".to_owned());
    Ok(Change::SetCatalog { catalog, content_sha256, file, applied_at_ms: NOON_MS })
}

/// A free price of each name.
#[must_use]
pub fn prices(names: &[&str]) -> Vec<PriceEntry> {
    let price = |name: &&str| PriceEntry {
        name: (*name).to_owned(),
        source: Some("a list".to_owned()),
        effective_from: None,
        effective_to: None,
        free: true,
        each: BTreeMap::new(),
        terms: Vec::new(),
    };
    names.iter().map(price).collect()
}

/// The change that publishes `version` with `prices`, and what these are called.
///
/// # Errors
/// For none: prices are JSON.
pub fn publish(version: u64, prices: &[PriceEntry]) -> Made<(Change, Publication)> {
    let prices_json = serde_json::to_string(prices)?;
    let publication = Publication {
        version,
        content_sha256: hex::encode(Sha256::digest(format!("document {version}"))),
        price_version: price_version(&prices_json),
        published_at_ms: NOON_MS + version.cast_signed(),
    };
    Ok((Change::Publish { publication: publication.clone(), prices_json }, publication))
}

/// Some changes that fit `state`, of every kind, as an act would plan them. `next` numbers what is new.
///
/// # Errors
/// For none.
pub fn random_changes(dice: &mut Dice, state: &State, next: &mut u64) -> Made<Vec<Change>> {
    let mut after = state.clone();
    let mut changes = Vec::new();
    for _ in 0..dice.between(1, 6) {
        *next += 1;
        let change = random_change(dice, &after, *next)?;
        after.apply(&change);
        changes.push(change);
    }
    Ok(changes)
}

fn random_change(dice: &mut Dice, state: &State, n: u64) -> Made<Change> {
    // In the order of their names: the same seed gives the same run, whatever a hash map does.
    let mut tenants: Vec<&TenantRecord> = state.tenants.values().collect();
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    let keys: Vec<&KeyRecord> = state.keys.values().collect();
    if tenants.is_empty() {
        return Ok(Change::AddTenant(tenant(n)));
    }
    let of = *dice.pick(&tenants);
    let team_of = |of: &TenantRecord| {
        let mut teams: Vec<&TeamRecord> = state.teams.values().filter(|team| team.tenant == of.id).collect();
        teams.sort_by(|a, b| a.name.cmp(&b.name));
        teams.first().map(|team| (*team).clone())
    };
    Ok(match dice.below(8) {
        0 => Change::AddTenant(tenant(n)),
        1 => {
            let zone = if dice.chance(50) { "Europe/Berlin" } else { "Asia/Kolkata" }.parse()?;
            Change::SetCalendar {
                tenant: of.name.clone(),
                calendar: of.calendar.with_zone(zone, NOON_MS + n.cast_signed()),
            }
        }
        2 => Change::AddTeam(team(n, of)),
        3 => Change::PutKey(team_of(of).map_or_else(|| bare_key(n, of), |team| full_key(n, of, &team))),
        4 if !keys.is_empty() => Change::PutKey(changed(dice.pick::<&KeyRecord>(&keys), n)),
        5 if !keys.is_empty() => Change::RevokeKey {
            id: dice.pick(&keys).id.clone(),
            revoked: Revoked { at_ms: NOON_MS + n.cast_signed(), by: Origin::File },
        },
        6 => catalog([dice.below(3), 3])?,
        _ => {
            let version = state.published.as_ref().map_or(1, |published| published.version + 1);
            publish(version, &prices(&[["a", "b", "c"][usize::try_from(dice.below(3))?]]))?.0
        }
    })
}

/// What a file may change of a key that it owns.
fn changed(key: &KeyRecord, n: u64) -> KeyRecord {
    KeyRecord {
        name: format!("renamed-{n}"),
        team: None,
        models: Some(Vec::new()),
        labels: vec![("n".to_owned(), n.to_string())],
        expires_at_ms: Some(n.cast_signed()),
        revoked: None,
        ..key.clone()
    }
}
