//! The members of one object on its way into another dialect: each is taken by name, and what nobody took is refused.

use super::Untranslatable;
use crate::json::{Kind, Node, Text};

/// The most members of one object that is carried over; the largest of both APIs has about 40.
const MOST_MEMBERS: usize = 128;

pub(super) type Carried<T> = Result<T, Untranslatable>;

/// An object, by its path as the client writes it.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    path: String,
    members: Vec<(Text<'a>, Node<'a>, bool)>,
}

impl<'a> Fields<'a> {
    /// Reads `node`, which must be an object without repeated members: which one counts would depend on who reads it.
    pub(super) fn read(node: Node<'a>, path: impl Into<String>) -> Carried<Self> {
        let path = path.into();
        if node.kind != Kind::Object {
            return Err(Untranslatable::new(path, "must be an object."));
        }
        let mut members: Vec<(Text<'a>, Node<'a>, bool)> = Vec::new();
        node.members(|key, value| {
            let name = key.decode();
            if members.len() == MOST_MEMBERS {
                return Err(Untranslatable::new(path.as_str(), "has too many members."));
            }
            if members.iter().any(|(other, ..)| other.is(&name)) {
                return Err(Untranslatable::new(join(&path, &name), "stands there more than once: send it once."));
            }
            members.push((key, value, false));
            Ok(())
        })?;
        Ok(Self { path, members })
    }

    /// The path of a member.
    pub(super) fn at(&self, name: &str) -> String {
        join(&self.path, name)
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Takes a member; null is as good as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Node<'a>> {
        let (_, node, taken) = self.members.iter_mut().find(|(key, ..)| key.is(name))?;
        *taken = true;
        (!node.is_null()).then_some(*node)
    }

    /// Takes a string.
    pub(super) fn text(&mut self, name: &str) -> Carried<Option<Text<'a>>> {
        let Some(node) = self.take(name) else { return Ok(None) };
        node.text().map(Some).ok_or_else(|| Untranslatable::new(self.at(name), "must be a string."))
    }

    /// Takes a string that must be there.
    pub(super) fn required_text(&mut self, name: &str) -> Carried<Text<'a>> {
        self.text(name)?.ok_or_else(|| Untranslatable::new(self.at(name), "is missing: it must be a string."))
    }

    pub(super) fn flag(&mut self, name: &str) -> Carried<Option<bool>> {
        match self.take(name).map(|node| node.kind) {
            None => Ok(None),
            Some(Kind::True) => Ok(Some(true)),
            Some(Kind::False) => Ok(Some(false)),
            Some(Kind::Object | Kind::Array | Kind::String | Kind::Number | Kind::Null) => {
                Err(Untranslatable::new(self.at(name), "must be true or false."))
            }
        }
    }

    /// Takes a number by its digits.
    pub(super) fn number(&mut self, name: &str) -> Carried<Option<&'a [u8]>> {
        let Some(node) = self.take(name) else { return Ok(None) };
        let is_number = node.kind == Kind::Number;
        is_number.then_some(Some(node.raw)).ok_or_else(|| Untranslatable::new(self.at(name), "must be a number."))
    }

    pub(super) fn array(&mut self, name: &str) -> Carried<Option<Node<'a>>> {
        self.of_kind(name, Kind::Array, "must be an array.")
    }

    pub(super) fn object(&mut self, name: &str) -> Carried<Option<Node<'a>>> {
        self.of_kind(name, Kind::Object, "must be an object.")
    }

    fn of_kind(&mut self, name: &str, kind: Kind, otherwise: &str) -> Carried<Option<Node<'a>>> {
        match self.take(name) {
            Some(node) if node.kind != kind => Err(Untranslatable::new(self.at(name), otherwise)),
            node => Ok(node),
        }
    }

    /// Takes a member that must say nothing more than its default: `is_default` decides on the bytes.
    pub(super) fn only_default(&mut self, name: &str, is_default: impl Fn(&Node<'a>) -> bool) -> Carried<()> {
        match self.take(name) {
            Some(node) if !is_default(&node) => Err(Untranslatable::unknown(self.at(name))),
            Some(_) | None => Ok(()),
        }
    }

    /// The same for a number, in whatever digits it is written.
    pub(super) fn only_number(&mut self, name: &str, default: &str) -> Carried<()> {
        self.only_default(name, |node| node.kind == Kind::Number && is_number(node.raw, default))
    }

    /// Takes a member that only advises about caching, and notes that it stayed behind.
    pub(super) fn leave(&mut self, name: &str, left_out: &mut Vec<String>) {
        if self.take(name).is_some() && !left_out.iter().any(|other| other == name) {
            left_out.push(name.to_owned());
        }
    }

    /// Refuses what nobody took.
    pub(super) fn end(self) -> Carried<()> {
        let rest = self.members.iter().find(|(_, node, taken)| !taken && !node.is_null());
        match rest {
            Some((key, ..)) => Err(Untranslatable::unknown(self.at(&key.decode()))),
            None => Ok(()),
        }
    }
}

/// Whether the digits are those of `whole`, with or without a fraction of zeros.
pub(super) fn is_number(digits: &[u8], whole: &str) -> bool {
    let Some(rest) = digits.strip_prefix(whole.as_bytes()) else { return false };
    match rest {
        [] => true,
        [b'.', zeros @ ..] => zeros.iter().all(|digit| *digit == b'0'),
        _ => false,
    }
}

fn join(path: &str, name: &str) -> String {
    let name: String = name.chars().take(64).collect();
    if path.is_empty() { name } else { format!("{path}.{name}") }
}
