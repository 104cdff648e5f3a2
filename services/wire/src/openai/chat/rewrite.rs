//! A client's request turned into one for a target: spans replaced, every other byte the client's own (O32).

use bytes::Bytes;

use super::request::{CapField, CapPlace, ChatRequest, IncludeUsage, Member, OptionsPlace, Places};
use crate::json::{Kind, Span, quoted};
use crate::splice::Splice;

/// What a target does with the role `developer` (O31).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeveloperRole {
    /// It knows the role.
    #[default]
    Keep,
    /// It does not: the message keeps its place and becomes a `system` message.
    System,
}

/// What a target needs changed.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamEdits<'a> {
    /// The model's name at the provider.
    pub model: &'a str,
    /// The cap in force and the one name under which this target knows it; `None` leaves the client's fields alone.
    pub cap: Option<(CapField, u64)>,
    /// Whether the target accepts `stream_options`; if not, the member is never sent and a stream's usage is unknown.
    pub supports_stream_options: bool,
    /// A pair for the provider's `metadata`, by which reports can be matched later. Replaces a pair of that name; left
    /// out when the client already uses all sixteen. Some providers take metadata only with `store: true`.
    pub correlation: Option<(&'a str, &'a str)>,
    pub developer_role: DeveloperRole,
}

/// Pairs that `metadata` may have (the API's own bound).
const MAX_METADATA_PAIRS: usize = 16;

impl ChatRequest {
    /// The body for one target, in one piece.
    #[must_use]
    pub fn rewrite(&self, edits: &UpstreamEdits<'_>) -> Bytes {
        self.splice(edits).into_bytes(self.body())
    }

    /// The body for one target as pieces that share the memory of the client's body: for large bodies.
    #[must_use]
    pub fn rewrite_parts(&self, edits: &UpstreamEdits<'_>) -> Vec<Bytes> {
        self.splice(edits).into_parts(self.body())
    }

    fn splice(&self, edits: &UpstreamEdits<'_>) -> Splice {
        let mut rewrite = Rewrite { places: &self.places, splice: Splice::new(), removed: Vec::new() };
        if let Some(span) = self.places.model
            && edits.model != self.facts().model
        {
            rewrite.splice.replace(span, quoted(edits.model));
        }
        if let Some((field, tokens)) = edits.cap {
            rewrite.cap(field, tokens);
        }
        let asks_usage = self.facts().stream && edits.supports_stream_options;
        rewrite.stream_options(asks_usage, self.facts().include_usage);
        if let Some((key, value)) = edits.correlation {
            rewrite.correlation(key, value);
        }
        match edits.developer_role {
            DeveloperRole::Keep => {}
            DeveloperRole::System => {
                for span in &self.places.developer_roles {
                    rewrite.splice.replace(*span, Bytes::from_static(b"\"system\""));
                }
            }
        }
        rewrite.finish()
    }
}

struct Rewrite<'a> {
    places: &'a Places,
    splice: Splice,
    /// Top-level members to take out, by index.
    removed: Vec<usize>,
}

impl Rewrite<'_> {
    /// Leaves exactly one cap, named `field`, of `tokens`.
    fn cap(&mut self, field: CapField, tokens: u64) {
        let (wanted, other) = match field {
            CapField::MaxTokens => (self.places.max_tokens, self.places.max_completion_tokens),
            CapField::MaxCompletionTokens => (self.places.max_completion_tokens, self.places.max_tokens),
        };
        match (wanted, other) {
            (Some(wanted), other) => {
                self.set_cap(wanted, tokens);
                self.removed.extend(other.map(|place| place.member));
            }
            (None, Some(other)) => {
                self.splice.replace(self.member(other.member).key, quoted(field.name()));
                self.set_cap(other, tokens);
            }
            (None, None) => self.insert_member(field.name(), &tokens.to_string()),
        }
    }

    fn set_cap(&mut self, place: CapPlace, tokens: u64) {
        if place.tokens != Some(tokens) {
            self.splice.replace(self.member(place.member).value.span, tokens.to_string());
        }
    }

    fn stream_options(&mut self, asks_usage: bool, include_usage: IncludeUsage) {
        match (self.places.stream_options, asks_usage) {
            (None, false) => {}
            (None, true) => self.insert_member("stream_options", r#"{"include_usage":true}"#),
            (Some(place), false) => self.removed.push(place.member),
            (Some(place), true) => self.ask_usage(place, include_usage),
        }
    }

    /// Makes the member ask for usage, keeping its other members.
    fn ask_usage(&mut self, place: OptionsPlace, include_usage: IncludeUsage) {
        let value = self.member(place.member).value;
        match (value.kind == Kind::Object, place.include_usage) {
            (false, _) => self.splice.replace(value.span, Bytes::from_static(br#"{"include_usage":true}"#)),
            (true, Some(_)) if include_usage == IncludeUsage::True => {}
            (true, Some(span)) => self.splice.replace(span, Bytes::from_static(b"true")),
            (true, None) => self.insert_in(value.span, place.is_empty, r#""include_usage":true"#),
        }
    }

    fn correlation(&mut self, key: &str, value: &str) {
        let pair = format!("{}:{}", quoted(key), quoted(value));
        let Some(place) = &self.places.metadata else {
            return self.insert_member("metadata", &format!("{{{pair}}}"));
        };
        let member = self.member(place.member).value;
        match member.kind {
            Kind::Object => match place.pairs.iter().find(|(name, _)| name == key) {
                Some((_, span)) => self.splice.replace(*span, quoted(value)),
                None if place.pairs.len() < MAX_METADATA_PAIRS => {
                    self.insert_in(member.span, place.pairs.is_empty(), &pair);
                }
                None => {}
            },
            Kind::Null => self.splice.replace(member.span, format!("{{{pair}}}")),
            // Not an object: the provider will say so better than we can.
            Kind::Array | Kind::String | Kind::Number | Kind::True | Kind::False => {}
        }
    }

    fn member(&self, index: usize) -> Member {
        self.places.members[index]
    }

    /// New members come first: the place after the opening brace needs no look at what follows, and at least `model`
    /// and `messages` do follow.
    fn insert_member(&mut self, name: &str, value: &str) {
        self.splice.insert(self.places.first, format!("{}:{value},", quoted(name)));
    }

    fn insert_in(&mut self, object: Span, is_empty: bool, member: &str) {
        let comma = if is_empty { "" } else { "," };
        self.splice.insert(object.start + 1, format!("{member}{comma}"));
    }

    /// Takes the members out with one comma each: those at the very start up to the first that stays, any other from
    /// the end of the one before it. `model` and `messages` are never taken out, so one always stays.
    fn finish(mut self) -> Splice {
        self.removed.sort_unstable();
        let members = &self.places.members;
        let leading = self.removed.iter().enumerate().take_while(|(at, index)| at == *index).count();
        if leading > 0
            && let Some(kept) = members.get(leading)
        {
            self.splice.remove(Span::new(members[0].key.start, kept.key.start));
        }
        for index in &self.removed[leading..] {
            self.splice.remove(Span::new(members[index - 1].value.span.end, members[*index].value.span.end));
        }
        self.splice
    }
}
