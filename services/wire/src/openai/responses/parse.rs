//! The walk over a request body: one pass, each known member in its own function.

use weir_domain::registry::Capability;

use super::request::Places;
use crate::json::{Cursor, Fault, JsonError, Kind, Span, Text, check_utf8};
use crate::request::values::{Parsed, bounded, flag, integer, missing, model_name, owned_field, short_text, twice};
use crate::request::{Continued, Limits, MAX_CAP_TOKENS, RequestFacts, ResponseFormat, Tool};
use crate::request_error::{Refusal, RequestErrorCode};

/// Reads the facts of a body and where its owned fields stand.
pub(super) fn parse(body: &[u8], limits: &Limits) -> Parsed<(RequestFacts, Places)> {
    // This API keeps answers unless it is told not to.
    let facts = RequestFacts { choices: 1, store: true, ..RequestFacts::default() };
    let parser = Parser {
        limits,
        facts,
        places: Places::default(),
        data_bytes: 0,
        safety_identifier: None,
        has_input: false,
        seen: 0,
        members: 0,
    };
    parser.parse(body)
}

/// The fields that Weir reads. Each may stand there once, and in one spelling only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Field {
    Model,
    Input,
    Instructions,
    Stream,
    MaxOutputTokens,
    Store,
    Background,
    PreviousResponseId,
    Conversation,
    Prompt,
    Metadata,
    ServiceTier,
    Tools,
    ToolChoice,
    Text,
    User,
    SafetyIdentifier,
}

const FIELDS: &[(&str, Field)] = &[
    ("model", Field::Model),
    ("input", Field::Input),
    ("instructions", Field::Instructions),
    ("stream", Field::Stream),
    ("max_output_tokens", Field::MaxOutputTokens),
    ("store", Field::Store),
    ("background", Field::Background),
    ("previous_response_id", Field::PreviousResponseId),
    ("conversation", Field::Conversation),
    ("prompt", Field::Prompt),
    ("metadata", Field::Metadata),
    ("service_tier", Field::ServiceTier),
    ("tools", Field::Tools),
    ("tool_choice", Field::ToolChoice),
    ("text", Field::Text),
    ("user", Field::User),
    ("safety_identifier", Field::SafetyIdentifier),
];

struct Parser<'l> {
    limits: &'l Limits,
    facts: RequestFacts,
    places: Places,
    /// Bytes of pictures and documents inside the request, which are not text.
    data_bytes: u64,
    safety_identifier: Option<String>,
    has_input: bool,
    seen: u32,
    members: usize,
}

impl Parser<'_> {
    fn parse(mut self, body: &[u8]) -> Parsed<(RequestFacts, Places)> {
        check_utf8(body)?;
        let mut cursor = Cursor::new(body);
        if cursor.peek()? != Kind::Object {
            return Err(Refusal::from(cursor.fault(Fault::WrongType)));
        }
        self.places.first = cursor.offset() + 1;
        cursor.members(|cursor, key| self.member(cursor, &key))?;
        cursor.end()?;
        self.conclude()
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Parsed<()> {
        if self.members == self.limits.max_members {
            let message = format!("The body has more than {} members.", self.limits.max_members);
            return Err(Refusal::whole(RequestErrorCode::TooMany, message).at(key.span().start));
        }
        self.members += 1;
        let kind = cursor.peek()?;
        let Some((name, field)) = owned_field(FIELDS, key)? else {
            cursor.skip()?;
            return Ok(());
        };
        let bit = 1 << field as u32;
        if self.seen & bit != 0 {
            return Err(twice(name, key));
        }
        self.seen |= bit;
        self.known(cursor, name, field, kind)
    }

    fn known(&mut self, cursor: &mut Cursor<'_>, name: &'static str, field: Field, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        match field {
            Field::Model => {
                let (model, text) = model_name(cursor, self.limits)?;
                self.facts.model = model;
                self.places.model = Some(text.span());
            }
            Field::Input => self.input(cursor, kind)?,
            Field::Instructions => self.facts.size.text_bytes += cursor.skip()?.span.len() as u64,
            Field::Stream => self.facts.stream = flag(cursor, name)?,
            Field::MaxOutputTokens => {
                self.facts.cap_tokens = integer(cursor, name, 1, MAX_CAP_TOKENS)?;
                self.places.cap = Some(Span::new(at, cursor.offset()));
            }
            Field::Store => self.facts.store = kind == Kind::Null || flag(cursor, name)?,
            Field::Background => {
                if flag(cursor, name)? {
                    let message = "`background` is not served: an answer that comes later cannot be accounted here.";
                    return Err(Refusal::invalid(name, message).at(at));
                }
            }
            Field::PreviousResponseId => {
                let id = short_text(cursor, name, self.limits)?;
                self.places.previous = id.is_some().then(|| Span::new(at, cursor.offset()));
                self.facts.continues =
                    id.map(|id| Continued { field: name, id }).or_else(|| self.facts.continues.take());
            }
            Field::Conversation => self.conversation(cursor, kind)?,
            Field::Prompt => {
                // A stored template, whose size nobody here can see.
                self.facts.size.file_references += u32::from(!cursor.skip()?.is_null());
            }
            Field::Metadata => self.metadata(cursor, kind)?,
            Field::ServiceTier => self.facts.service_tier = short_text(cursor, name, self.limits)?.map(priced_tier),
            Field::Tools => self.tools(cursor, kind)?,
            Field::ToolChoice => self.facts.has_tool_choice = !cursor.skip()?.is_null(),
            Field::Text => self.text(cursor, kind)?,
            Field::User => self.facts.end_user = short_text(cursor, name, self.limits)?,
            Field::SafetyIdentifier => self.safety_identifier = short_text(cursor, name, self.limits)?,
        }
        // `store: null` is the default, and was not read above.
        if field == Field::Store && kind == Kind::Null {
            cursor.skip()?;
        }
        Ok(())
    }

    fn input(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        match kind {
            Kind::String => {
                cursor.skip()?;
                self.facts.size.messages = 1;
            }
            Kind::Array => {
                let limits = self.limits;
                cursor.elements(|cursor, index| {
                    if index == limits.max_messages {
                        let message = format!("`input` has more than {} items.", limits.max_messages);
                        return Err(Refusal::new(RequestErrorCode::TooMany, "input", message).at(cursor.offset()));
                    }
                    self.facts.size.messages = self.facts.size.messages.saturating_add(1);
                    self.item(cursor).map_err(Refusal::from)
                })?;
            }
            Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => {
                return Err(Refusal::invalid("input", "`input` must be a string or an array of items.").at(at));
            }
        }
        self.has_input = true;
        self.facts.size.text_bytes += (cursor.offset() - at) as u64;
        Ok(())
    }

    /// An item or a part of one: data by the member that carries it, further parts in `content` and `output`.
    fn item(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.peek()? != Kind::Object {
            cursor.skip()?;
            return Ok(());
        }
        cursor.members(|cursor, key| match (key.raw(), cursor.peek()?) {
            (b"content" | b"output", Kind::Array) => cursor.elements(|cursor, _| self.item(cursor)).map(|_| ()),
            (b"image_url", Kind::String) => {
                let address = cursor.string()?;
                self.facts.size.images = self.facts.size.images.saturating_add(1);
                if address.raw().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"data:")) {
                    self.facts.data_url_bytes += address.raw().len() as u64;
                    self.data_bytes += address.raw().len() as u64;
                }
                Ok(())
            }
            (b"file_data", Kind::String) => {
                let bytes = cursor.string()?.raw().len() as u64;
                self.facts.size.file_bytes += bytes;
                self.data_bytes += bytes;
                Ok(())
            }
            (b"file_id" | b"file_url", Kind::String) => {
                cursor.skip()?;
                self.facts.size.file_references = self.facts.size.file_references.saturating_add(1);
                Ok(())
            }
            _ => cursor.skip().map(|_| ()),
        })?;
        Ok(())
    }

    /// An id, or an object with one.
    fn conversation(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        if kind != Kind::Object {
            let id = short_text(cursor, "conversation", self.limits)?;
            let named = id.map(|id| Continued { field: "conversation", id });
            self.facts.continues = named.or_else(|| self.facts.continues.take());
            return Ok(());
        }
        cursor.members(|cursor, key| {
            if key.is("id") && cursor.peek()? == Kind::String {
                let id = bounded(&cursor.string()?, "conversation.id", self.limits)?;
                self.facts.continues = Some(Continued { field: "conversation", id });
                return Ok(());
            }
            cursor.skip().map(|_| ()).map_err(Refusal::from)
        })?;
        Ok(())
    }

    fn metadata(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        let mut pairs = usize::MAX;
        if kind == Kind::Object {
            pairs = 0;
            cursor.members(|cursor, _| {
                pairs += 1;
                cursor.skip().map(|_| ())
            })?;
        } else {
            cursor.skip()?;
        }
        self.places.metadata = Some((Span::new(at, cursor.offset()), pairs));
        Ok(())
    }

    fn tools(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        match kind {
            Kind::Null => {
                cursor.skip()?;
                return Ok(());
            }
            Kind::Array => {}
            Kind::Object | Kind::String | Kind::Number | Kind::True | Kind::False => {
                return Err(Refusal::invalid("tools", "`tools` must be an array.").at(at));
            }
        }
        cursor.elements(|cursor, _| {
            if self.facts.tools.len() == self.limits.max_tools {
                let message = format!("`tools` has more than {} entries.", self.limits.max_tools);
                return Err(Refusal::new(RequestErrorCode::TooMany, "tools", message).at(cursor.offset()));
            }
            let tool = self.tool(cursor)?;
            if tool.kind.starts_with("web_search") {
                self.facts.need(Capability::WebSearch);
            }
            self.facts.tools.push(tool);
            Ok(())
        })?;
        if !self.facts.tools.is_empty() {
            self.facts.need(Capability::Tools);
        }
        self.facts.size.text_bytes += (cursor.offset() - at) as u64;
        Ok(())
    }

    fn tool(&self, cursor: &mut Cursor<'_>) -> Parsed<Tool> {
        let at = cursor.offset();
        if cursor.peek()? != Kind::Object {
            return Err(Refusal::invalid("tools", "Each entry of `tools` must be an object.").at(at));
        }
        let mut tool = Tool { kind: String::from("function"), name: String::new() };
        cursor.members(|cursor, key| {
            let kind = cursor.peek()?;
            if key.is("type") && kind == Kind::String {
                tool.kind = bounded(&cursor.string()?, "tools", self.limits)?;
            } else if key.is("name") && kind == Kind::String {
                tool.name = bounded(&cursor.string()?, "tools", self.limits)?;
            } else {
                cursor.skip()?;
            }
            Ok::<(), Refusal>(())
        })?;
        if !matches!(tool.kind.as_str(), "function" | "custom") || tool.name.is_empty() {
            tool.name.clone_from(&tool.kind);
        }
        Ok(tool)
    }

    /// `text.format` says which form the answer must have.
    fn text(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        if kind != Kind::Object {
            cursor.skip()?;
            return Ok(());
        }
        let mut format = ResponseFormat::Text;
        cursor.members(|cursor, key| {
            if !key.is("format") || cursor.peek()? != Kind::Object {
                return cursor.skip().map(|_| ());
            }
            let of_format = |cursor: &mut Cursor<'_>, key: Text<'_>| {
                if !key.is("type") || cursor.peek()? != Kind::String {
                    return cursor.skip().map(|_| ());
                }
                format = match cursor.string()?.decode().as_ref() {
                    "text" => ResponseFormat::Text,
                    "json_object" => ResponseFormat::JsonObject,
                    "json_schema" => ResponseFormat::JsonSchema,
                    _ => ResponseFormat::Other,
                };
                Ok::<(), JsonError>(())
            };
            cursor.members(of_format).map(|_| ())
        })?;
        match format {
            ResponseFormat::Text | ResponseFormat::Other => {}
            ResponseFormat::JsonObject => self.facts.need(Capability::JsonMode),
            ResponseFormat::JsonSchema => self.facts.need(Capability::JsonSchema),
        }
        self.facts.response_format = format;
        self.facts.size.text_bytes += (cursor.offset() - at) as u64;
        Ok(())
    }

    fn conclude(mut self) -> Parsed<(RequestFacts, Places)> {
        if self.places.model.is_none() {
            return Err(missing("model", "name a model"));
        }
        let facts = &mut self.facts;
        if !self.has_input && facts.continues.is_none() && facts.size.file_references == 0 {
            return Err(missing("input", "send a string or an array of items"));
        }
        facts.size.text_bytes = facts.size.text_bytes.saturating_sub(self.data_bytes);
        // The turns before this one are at the provider: as a document of unknown size, they are bounded flat.
        facts.size.file_references += u32::from(facts.continues.is_some());
        facts.end_user = self.safety_identifier.or_else(|| facts.end_user.take());
        if facts.stream {
            facts.need(Capability::Streaming);
        }
        if facts.size.images > 0 {
            facts.need(Capability::Vision);
        }
        Ok((self.facts, self.places))
    }
}

/// The tier under which prices know it: `fast` and `priority` are one tier, and answers say `priority`.
fn priced_tier(tier: String) -> String {
    if tier == "fast" { "priority".to_owned() } else { tier }
}
