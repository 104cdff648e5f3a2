//! Names in Redis: keys, and the fields of a book.
//!
//! Every key of a tenant begins `prefix:{hash of the tenant}:`, so that all of them are in one slot whatever the tenant,
//! its teams, keys and models are called: the first pair of braces decides, and names come after it (O53).

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::{KeyId, ModelName, ReservationId, TeamId, TenantId};
use weir_domain::quota::{Scope, Subject, Unit};

/// The keys of one tenant.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    tag: String,
}

impl Keys {
    pub(super) fn of(prefix: &str, tenant: &TenantId) -> Self {
        let digest = Sha256::digest(tenant.as_str().as_bytes());
        let mut tag = format!("{prefix}:{{");
        // 128 bits: two tenants never meet.
        for byte in &digest[..16] {
            let _ = write!(tag, "{byte:02x}");
        }
        tag.push_str("}:");
        Self { tag }
    }

    pub(super) fn book(&self) -> Vec<u8> {
        self.with(b"book")
    }

    pub(super) fn due(&self) -> Vec<u8> {
        self.with(b"due")
    }

    pub(super) fn pending(&self) -> Vec<u8> {
        self.with(b"pending")
    }

    pub(super) fn record(&self, id: ReservationId) -> Vec<u8> {
        self.with(format!("r:{}", id.uuid().simple()).as_bytes())
    }

    pub(super) fn rate(&self, scope: &str) -> Vec<u8> {
        self.with(format!("rate:{scope}").as_bytes())
    }

    pub(super) fn slots(&self, scope: &str) -> Vec<u8> {
        self.with(format!("slots:{scope}").as_bytes())
    }

    pub(super) fn idempotency(&self, hash: &[u8; 32]) -> Vec<u8> {
        self.with(&[b"i:".as_slice(), hash].concat())
    }

    fn with(&self, name: &[u8]) -> Vec<u8> {
        [self.tag.as_bytes(), name].concat()
    }
}

/// How many sets list the tenants: enough to lie on several nodes, few enough to be read one after another.
const DIRECTORIES: u8 = 16;

/// The set that lists a tenant; any of them may be read alone.
pub(super) fn directory(prefix: &str, tenant: &TenantId) -> String {
    let digest = Sha256::digest(tenant.as_str().as_bytes());
    format!("{prefix}:tenants:{}", digest[31] % DIRECTORIES)
}

pub(super) fn directories(prefix: &str) -> impl Iterator<Item = String> {
    (0..DIRECTORIES).map(move |n| format!("{prefix}:tenants:{n}"))
}

/// Tenants that were asked for and have no book.
pub(super) fn wanted(prefix: &str) -> String {
    format!("{prefix}:wanted")
}

/// Whose turn it is to rebuild.
pub(super) fn turn(prefix: &str) -> String {
    format!("{prefix}:rebuilder")
}

/// A scope as the tail of a key or field; lengths instead of separators, because names may contain anything.
pub(super) fn scope_code(scope: &Scope) -> String {
    let (plain, on_model, name) = match &scope.subject {
        Subject::Tenant => ('t', 'T', ""),
        Subject::Team(team) => ('g', 'G', team.as_str()),
        Subject::Key(key) => ('k', 'K', key.as_str()),
    };
    match &scope.model {
        None => format!("{plain}{name}"),
        Some(model) => format!("{on_model}{}:{name}{model}", name.len()),
    }
}

pub(super) fn scope_of(code: &str) -> Option<Scope> {
    let mut letters = code.chars();
    let kind = letters.next()?;
    let rest = letters.as_str();
    let (name, model) = if kind.is_ascii_uppercase() {
        let (length, names) = rest.split_once(':')?;
        let (name, model) = names.split_at_checked(length.parse().ok()?)?;
        (name, Some(ModelName::new(model)))
    } else {
        (rest, None)
    };
    let subject = match kind.to_ascii_lowercase() {
        't' => Subject::Tenant,
        'g' => Subject::Team(TeamId::new(name)),
        'k' => Subject::Key(KeyId::new(name)),
        _ => return None,
    };
    Some(Scope { subject, model })
}

pub(super) fn window_code(window: Window) -> String {
    let kind = match window.kind {
        WindowKind::Day => 'd',
        WindowKind::Week => 'w',
        WindowKind::Month => 'm',
        WindowKind::Total => 't',
    };
    format!("{kind}{}", window.ordinal)
}

pub(super) fn window_of(code: &str) -> Option<Window> {
    let mut letters = code.chars();
    let kind = match letters.next()? {
        'd' => WindowKind::Day,
        'w' => WindowKind::Week,
        'm' => WindowKind::Month,
        't' => WindowKind::Total,
        _ => return None,
    };
    Some(Window { kind, ordinal: letters.as_str().parse().ok()? })
}

/// The field that counts what is charged and held of `unit`, together.
pub(super) fn total_field(unit: Unit, window: Window, scope: &str) -> String {
    format!("{} {} {scope}", unit_code(unit), window_code(window))
}

pub(super) const fn unit_code(unit: Unit) -> &'static str {
    match unit {
        Unit::Requests => "r",
        Unit::Tokens => "t",
        Unit::Usd => "u",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_windows_are_read_back_whatever_they_are_called() {
        for name in ["", "a", "with space", "{x}", "}{", "3:x", "ключ", "\0\n:"] {
            let key = KeyId::new(name);
            for scope in Scope::of_request(Some(&TeamId::new(name)), &key, &ModelName::new(name)).iter() {
                assert_eq!(scope_of(&scope_code(scope)).as_ref(), Some(scope), "{name:?}");
            }
        }
        for window in [Window { kind: WindowKind::Day, ordinal: -3 }, Window::TOTAL] {
            assert_eq!(window_of(&window_code(window)), Some(window));
        }
        for other in ["", "ключ", "d", "x1", "d1x"] {
            assert_eq!((window_of(other), scope_of(&format!("ж{other}"))), (None, None), "{other:?}");
        }
    }

    #[test]
    fn o53_a_name_never_reaches_the_hash_tag() {
        let keys = Keys::of("weir", &TenantId::new("}{evil}"));
        let key = String::from_utf8(keys.rate("k{other}")).unwrap();
        let tag = key.split_once('{').unwrap().1.split_once('}').unwrap().0;
        assert_eq!(tag.len(), 32);
        assert!(tag.chars().all(|c| c.is_ascii_hexdigit()));
    }
}
