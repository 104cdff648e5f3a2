//! The walk over a request body: one pass, each known member in its own function.

use weir_domain::registry::Capability;

use super::messages::{MessageFacts, read_messages};
use super::request::{
    CapPlace, ChatFacts, IncludeUsage, MAX_CAP_TOKENS, MAX_CHOICES, Member, ObjectPlace, OptionsPlace, Places,
    ResponseFormat, Tool,
};
use crate::json::{Cursor, Fault, Kind, Span, Text, Value, check_utf8};
use crate::request::Limits;
use crate::request::values::{Parsed, bounded, flag, integer, missing, model_name, owned_field, short_text, twice};
use crate::request_error::{Refusal, RequestErrorCode};

/// Reads the facts of a body and where its owned fields stand.
pub(super) fn parse(body: &[u8], limits: &Limits) -> Parsed<(ChatFacts, Places)> {
    Parser::new(limits).parse(body)
}

/// The fields that Weir reads. Each may stand there once, and in one spelling only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Field {
    Model,
    Messages,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    N,
    ServiceTier,
    Tools,
    Functions,
    ToolChoice,
    ResponseFormat,
    Modalities,
    User,
    SafetyIdentifier,
    Metadata,
    Store,
    Logprobs,
    WebSearchOptions,
    Prediction,
}

const FIELDS: &[(&str, Field)] = &[
    ("model", Field::Model),
    ("messages", Field::Messages),
    ("stream", Field::Stream),
    ("stream_options", Field::StreamOptions),
    ("max_tokens", Field::MaxTokens),
    ("max_completion_tokens", Field::MaxCompletionTokens),
    ("n", Field::N),
    ("service_tier", Field::ServiceTier),
    ("tools", Field::Tools),
    ("functions", Field::Functions),
    ("tool_choice", Field::ToolChoice),
    ("response_format", Field::ResponseFormat),
    ("modalities", Field::Modalities),
    ("user", Field::User),
    ("safety_identifier", Field::SafetyIdentifier),
    ("metadata", Field::Metadata),
    ("store", Field::Store),
    ("logprobs", Field::Logprobs),
    ("web_search_options", Field::WebSearchOptions),
    ("prediction", Field::Prediction),
];

struct Parser<'l> {
    limits: &'l Limits,
    facts: ChatFacts,
    places: Places,
    messages: Option<MessageFacts>,
    safety_identifier: Option<String>,
    seen: u32,
}

impl<'l> Parser<'l> {
    fn new(limits: &'l Limits) -> Self {
        let facts = ChatFacts { choices: 1, ..ChatFacts::default() };
        Self { limits, facts, places: Places::default(), messages: None, safety_identifier: None, seen: 0 }
    }

    fn parse(mut self, body: &[u8]) -> Parsed<(ChatFacts, Places)> {
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
        if self.places.members.len() == self.limits.max_members {
            let message = format!("The body has more than {} members.", self.limits.max_members);
            return Err(Refusal::whole(RequestErrorCode::TooMany, message).at(key.span().start));
        }
        let kind = cursor.peek()?;
        let start = cursor.offset();
        match owned_field(FIELDS, key)? {
            None => {
                cursor.skip()?;
            }
            Some((name, field)) => {
                let bit = 1 << field as u32;
                if self.seen & bit != 0 {
                    return Err(twice(name, key));
                }
                self.seen |= bit;
                self.known(cursor, name, field, kind)?;
            }
        }
        let span = Span::new(start, cursor.offset());
        self.places.members.push(Member { key: key.span(), value: Value { kind, span } });
        Ok(())
    }

    fn known(&mut self, cursor: &mut Cursor<'_>, name: &'static str, field: Field, kind: Kind) -> Parsed<()> {
        let member = self.places.members.len();
        match field {
            Field::Model => self.model(cursor)?,
            Field::Messages => self.read_messages(cursor, kind)?,
            Field::Stream => self.facts.stream = flag(cursor, name)?,
            Field::StreamOptions => self.stream_options(cursor, kind, member)?,
            Field::MaxTokens => {
                let tokens = integer(cursor, name, 1, MAX_CAP_TOKENS)?;
                self.places.max_tokens = Some(CapPlace { member, tokens });
            }
            Field::MaxCompletionTokens => {
                let tokens = integer(cursor, name, 1, MAX_CAP_TOKENS)?;
                self.places.max_completion_tokens = Some(CapPlace { member, tokens });
            }
            Field::N => {
                let choices = integer(cursor, name, 1, u64::from(MAX_CHOICES))?.unwrap_or(1);
                self.facts.choices = u32::try_from(choices).unwrap_or(MAX_CHOICES);
            }
            Field::ServiceTier => self.facts.service_tier = short_text(cursor, name, self.limits)?.map(priced_tier),
            Field::Tools | Field::Functions => self.tools(cursor, name, kind, field == Field::Functions)?,
            Field::ToolChoice => self.facts.has_tool_choice = !cursor.skip()?.is_null(),
            Field::ResponseFormat => self.response_format(cursor, kind)?,
            Field::Modalities => self.modalities(cursor, kind)?,
            Field::User => self.facts.end_user = short_text(cursor, name, self.limits)?,
            Field::SafetyIdentifier => self.safety_identifier = short_text(cursor, name, self.limits)?,
            Field::Metadata => self.metadata(cursor, kind, member)?,
            Field::Store => self.facts.store = flag(cursor, name)?,
            Field::Logprobs => {
                if flag(cursor, name)? {
                    self.facts.need(Capability::Logprobs);
                }
            }
            Field::WebSearchOptions => self.need_if_present(cursor, Capability::WebSearch)?,
            Field::Prediction => {
                let value = cursor.skip()?;
                if !value.is_null() {
                    self.facts.size.text_bytes += value.span.len() as u64;
                    self.facts.has_prediction = true;
                }
            }
        }
        Ok(())
    }

    fn need_if_present(&mut self, cursor: &mut Cursor<'_>, capability: Capability) -> Parsed<()> {
        if !cursor.skip()?.is_null() {
            self.facts.need(capability);
        }
        Ok(())
    }

    fn model(&mut self, cursor: &mut Cursor<'_>) -> Parsed<()> {
        let (model, text) = model_name(cursor, self.limits)?;
        self.facts.model = model;
        self.places.model = Some(text.span());
        Ok(())
    }

    fn read_messages(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        if kind != Kind::Array {
            return Err(Refusal::invalid("messages", "`messages` must be an array of messages.").at(at));
        }
        let messages = read_messages(cursor, self.limits)?;
        if messages.count == 0 {
            return Err(Refusal::invalid("messages", "`messages` is empty: send at least one message.").at(at));
        }
        self.messages = Some(messages);
        Ok(())
    }

    fn stream_options(&mut self, cursor: &mut Cursor<'_>, kind: Kind, member: usize) -> Parsed<()> {
        let mut place = OptionsPlace { member, include_usage: None, is_empty: true };
        match kind {
            Kind::Null => {
                cursor.skip()?;
            }
            Kind::Object => {
                cursor.members(|cursor, key| {
                    place.is_empty = false;
                    if !key.is("include_usage") {
                        return cursor.skip().map(|_| ()).map_err(Refusal::from);
                    }
                    if place.include_usage.is_some() {
                        let message = "`include_usage` stands there more than once: send it once.";
                        let field = "stream_options.include_usage";
                        let code = RequestErrorCode::DuplicateField;
                        return Err(Refusal::new(code, field, message).at(key.span().start));
                    }
                    let value = cursor.skip()?;
                    place.include_usage = Some(value.span);
                    self.facts.include_usage = match value.kind {
                        Kind::True => IncludeUsage::True,
                        Kind::False => IncludeUsage::False,
                        Kind::Null => IncludeUsage::Null,
                        Kind::Object | Kind::Array | Kind::String | Kind::Number => {
                            let message = "`stream_options.include_usage` must be true or false.";
                            return Err(Refusal::invalid("stream_options.include_usage", message).at(value.span.start));
                        }
                    };
                    Ok(())
                })?;
            }
            Kind::Array | Kind::String | Kind::Number | Kind::True | Kind::False => {
                let message = "`stream_options` must be an object.";
                return Err(Refusal::invalid("stream_options", message).at(cursor.offset()));
            }
        }
        self.places.stream_options = Some(place);
        Ok(())
    }

    fn tools(&mut self, cursor: &mut Cursor<'_>, name: &'static str, kind: Kind, bare: bool) -> Parsed<()> {
        let at = cursor.offset();
        match kind {
            Kind::Null => {
                cursor.skip()?;
                return Ok(());
            }
            Kind::Array => {}
            Kind::Object | Kind::String | Kind::Number | Kind::True | Kind::False => {
                return Err(Refusal::invalid(name, format!("`{name}` must be an array.")).at(at));
            }
        }
        cursor.elements(|cursor, _| {
            if self.facts.tools.len() == self.limits.max_tools {
                let message = format!("`{name}` has more than {} entries.", self.limits.max_tools);
                return Err(Refusal::new(RequestErrorCode::TooMany, name, message).at(cursor.offset()));
            }
            let tool = self.tool(cursor, name, bare)?;
            self.facts.tools.push(tool);
            Ok(())
        })?;
        if !self.facts.tools.is_empty() {
            self.facts.need(Capability::Tools);
        }
        self.facts.size.text_bytes += (cursor.offset() - at) as u64;
        Ok(())
    }

    /// One entry of `tools` (`{type, function: {name}}`), or of the older `functions` (`bare`: the name on top).
    fn tool(&self, cursor: &mut Cursor<'_>, field: &'static str, bare: bool) -> Parsed<Tool> {
        let at = cursor.offset();
        if cursor.peek()? != Kind::Object {
            return Err(Refusal::invalid(field, format!("Each entry of `{field}` must be an object.")).at(at));
        }
        let mut tool = Tool { kind: String::from("function"), name: String::new() };
        cursor.members(|cursor, key| {
            let kind = cursor.peek()?;
            if key.is("type") && kind == Kind::String {
                tool.kind = bounded(&cursor.string()?, field, self.limits)?;
            } else if bare && key.is("name") && kind == Kind::String {
                tool.name = bounded(&cursor.string()?, field, self.limits)?;
            } else if (key.is("function") || key.is("custom")) && kind == Kind::Object {
                cursor.members(|cursor, key| {
                    if key.is("name") && cursor.peek()? == Kind::String {
                        tool.name = bounded(&cursor.string()?, field, self.limits)?;
                        return Ok(());
                    }
                    cursor.skip().map(|_| ()).map_err(Refusal::from)
                })?;
            } else {
                cursor.skip()?;
            }
            Ok::<(), Refusal>(())
        })?;
        if tool.name.is_empty() {
            tool.name.clone_from(&tool.kind);
        }
        Ok(tool)
    }

    fn response_format(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        if kind != Kind::Object {
            cursor.skip()?;
            return Ok(());
        }
        let mut format = ResponseFormat::Text;
        cursor.members(|cursor, key| {
            if !key.is("type") || cursor.peek()? != Kind::String {
                return cursor.skip().map(|_| ()).map_err(Refusal::from);
            }
            let text = cursor.string()?;
            format = match text.decode().as_ref() {
                "text" => ResponseFormat::Text,
                "json_object" => ResponseFormat::JsonObject,
                "json_schema" => ResponseFormat::JsonSchema,
                _ => ResponseFormat::Other,
            };
            Ok(())
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

    fn modalities(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        if kind != Kind::Array {
            cursor.skip()?;
            return Ok(());
        }
        cursor.elements(|cursor, _| {
            if cursor.peek()? == Kind::String && cursor.string()?.is("audio") {
                self.facts.need(Capability::Audio);
                return Ok(());
            }
            Ok::<(), Refusal>(())
        })?;
        Ok(())
    }

    fn metadata(&mut self, cursor: &mut Cursor<'_>, kind: Kind, member: usize) -> Parsed<()> {
        let mut pairs = Vec::new();
        if kind == Kind::Object {
            let limits = self.limits;
            cursor.members(|cursor, key| {
                let value = cursor.skip()?;
                if pairs.len() == limits.max_members {
                    let message = format!("`metadata` has more than {} pairs.", limits.max_members);
                    return Err(Refusal::new(RequestErrorCode::TooMany, "metadata", message).at(key.span().start));
                }
                pairs.push((key.decode().into_owned(), value.span));
                Ok(())
            })?;
        } else {
            cursor.skip()?;
        }
        self.places.metadata = Some(ObjectPlace { member, pairs });
        Ok(())
    }

    fn conclude(mut self) -> Parsed<(ChatFacts, Places)> {
        if self.places.model.is_none() {
            return Err(missing("model", "name a model"));
        }
        let Some(messages) = self.messages else {
            return Err(missing("messages", "send an array of messages"));
        };
        let facts = &mut self.facts;
        let caps = [self.places.max_tokens, self.places.max_completion_tokens];
        facts.cap_tokens = caps.into_iter().flatten().filter_map(|cap| cap.tokens).min();
        facts.end_user = self.safety_identifier.or_else(|| facts.end_user.take());
        facts.data_url_bytes = messages.data_url_bytes;
        facts.size.text_bytes += messages.text_bytes;
        facts.size.messages = messages.count;
        facts.size.images = messages.images;
        facts.size.audio_bytes = messages.audio_bytes;
        facts.size.file_bytes = messages.file_bytes;
        facts.size.file_references = messages.file_references;
        let shown = [
            (facts.stream, Capability::Streaming),
            (facts.choices > 1, Capability::ManyChoices),
            (messages.images > 0, Capability::Vision),
            (messages.audio_parts > 0, Capability::Audio),
        ];
        for (_, capability) in shown.into_iter().filter(|(is_shown, _)| *is_shown) {
            facts.need(capability);
        }
        self.places.developer_roles = messages.developer_roles;
        Ok((self.facts, self.places))
    }
}

/// The tier under which prices know it: `fast` and `priority` are one tier, and answers say `priority`.
fn priced_tier(tier: String) -> String {
    if tier == "fast" { "priority".to_owned() } else { tier }
}
