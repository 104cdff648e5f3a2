//! The form of a virtual key: `weir_live_`, 32 random characters, and 6 that check them.
//!
//! The name in front lets a secret scanner find a key that leaked into a repository, and the check (CRC-32, as other
//! token formats have it) lets a scanner or a CLI tell a mistyped key from a revoked one without asking anybody. It
//! proves nothing: only the hash in a snapshot does.

use std::fmt;

use weir_runtime::entropy::Entropy;

const MARK: &str = "weir_live_";

/// 32 characters of 62: 190 bits.
const RANDOM_CHARS: usize = 32;

/// 62⁶ is more than 2³².
const CHECK_CHARS: usize = 6;

/// The mark and six characters: enough to tell the keys of a tenant apart; 154 bits stay unknown.
const SHOWN_CHARS: usize = MARK.len() + 6;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A key in plain text: it exists once, in the answer that creates it.
pub struct VirtualKey(String);

impl VirtualKey {
    pub(crate) fn generate(entropy: &dyn Entropy) -> Self {
        let random = random_text(entropy, RANDOM_CHARS);
        let check = check_of(&random);
        Self(format!("{MARK}{random}{check}"))
    }

    /// The one place to read it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What may be shown for ever.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0[..SHOWN_CHARS]
    }

    /// Whether `text` could be a key of this form: a mistyped one is not.
    #[must_use]
    pub fn is_well_formed(text: &str) -> bool {
        text.strip_prefix(MARK)
            .filter(|rest| rest.len() == RANDOM_CHARS + CHECK_CHARS && rest.is_ascii())
            .map(|rest| rest.split_at(RANDOM_CHARS))
            .is_some_and(|(random, check)| random.bytes().all(|b| ALPHABET.contains(&b)) && check_of(random) == check)
    }
}

impl fmt::Debug for VirtualKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualKey({}…)", self.prefix())
    }
}

/// `length` characters, each drawn evenly from the alphabet.
pub(crate) fn random_text(entropy: &dyn Entropy, length: usize) -> String {
    // Bytes from 248 on are drawn again: 256 is no multiple of 62, and the first eight would come too often.
    const FIRST_UNEVEN: u8 = 248;
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut bytes = [0; 64];
        entropy.fill(&mut bytes);
        let even = bytes.into_iter().filter(|byte| *byte < FIRST_UNEVEN);
        text.extend(even.map(|byte| char::from(ALPHABET[usize::from(byte % 62)])).take(length - text.len()));
    }
    text
}

fn check_of(random: &str) -> String {
    let mut rest = crc32fast::hash(random.as_bytes());
    let mut check = [b'0'; CHECK_CHARS];
    for place in check.iter_mut().rev() {
        *place = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    check.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use weir_runtime::entropy::{OsEntropy, SeededEntropy};

    use super::*;

    #[test]
    fn a_key_has_its_form_and_shows_only_its_prefix() {
        let key = VirtualKey::generate(&OsEntropy);
        assert_eq!(key.expose().len(), 48);
        assert!(VirtualKey::is_well_formed(key.expose()));
        assert_eq!(format!("{key:?}"), format!("VirtualKey({}…)", &key.expose()[..16]));
    }

    #[test]
    fn one_changed_character_is_noticed() {
        let key = VirtualKey::generate(&SeededEntropy::new(7));
        for at in MARK.len()..key.expose().len() {
            let mut changed = key.expose().to_owned().into_bytes();
            changed[at] = if changed[at] == b'x' { b'y' } else { b'x' };
            assert!(!VirtualKey::is_well_formed(std::str::from_utf8(&changed).unwrap()), "character {at}");
        }
        for text in ["", "weir_live_", "sk-123", "weir_live_ä"] {
            assert!(!VirtualKey::is_well_formed(text), "{text}");
        }
    }

    #[test]
    fn characters_are_drawn_evenly_and_never_repeat() {
        let entropy = SeededEntropy::new(1);
        let text = random_text(&entropy, 62_000);
        for character in ALPHABET {
            let count = text.bytes().filter(|byte| byte == character).count();
            assert!((850..1150).contains(&count), "{} came {count} times", char::from(*character));
        }
        let keys: HashSet<String> = (0..1000).map(|_| VirtualKey::generate(&OsEntropy).0).collect();
        assert_eq!(keys.len(), 1000);
    }
}
