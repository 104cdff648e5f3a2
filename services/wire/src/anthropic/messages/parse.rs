//! The walk over a request body: one pass, each known member in its own function.

use weir_domain::registry::Capability;

use super::blocks::Contents;
use super::request::{Places, Purpose};
use crate::anthropic::AnthropicVersion;
use crate::json::{Cursor, Fault, Kind, Text, check_utf8};
use crate::request::values::{Parsed, bounded, flag, integer, missing, model_name, owned_field, short_text, twice};
use crate::request::{Continued, Limits, MAX_CAP_TOKENS, RequestFacts, ResponseFormat, Tool};
use crate::request_error::{Refusal, RequestErrorCode};

/// Reads the facts of a body and where its owned fields stand.
pub(super) fn parse(
    body: &[u8],
    limits: &Limits,
    version: AnthropicVersion,
    purpose: Purpose,
) -> Parsed<(RequestFacts, Places)> {
    let facts = RequestFacts { choices: 1, ..RequestFacts::default() };
    let parser = Parser {
        limits,
        version,
        facts,
        places: Places::default(),
        contents: Contents::default(),
        seen: 0,
        members: 0,
    };
    parser.parse(body, purpose)
}

/// The fields that Weir reads. Each may stand there once, and in one spelling only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Field {
    Model,
    Messages,
    MaxTokens,
    Stream,
    System,
    Tools,
    ToolChoice,
    Metadata,
    ServiceTier,
    OutputConfig,
    Container,
    Sampling,
}

const FIELDS: &[(&str, Field)] = &[
    ("model", Field::Model),
    ("messages", Field::Messages),
    ("max_tokens", Field::MaxTokens),
    ("stream", Field::Stream),
    ("system", Field::System),
    ("tools", Field::Tools),
    ("tool_choice", Field::ToolChoice),
    ("metadata", Field::Metadata),
    ("service_tier", Field::ServiceTier),
    ("output_config", Field::OutputConfig),
    ("container", Field::Container),
    ("temperature", Field::Sampling),
    ("top_p", Field::Sampling),
    ("top_k", Field::Sampling),
];

struct Parser<'l> {
    limits: &'l Limits,
    version: AnthropicVersion,
    facts: RequestFacts,
    places: Places,
    contents: Contents,
    seen: u32,
    members: usize,
}

impl Parser<'_> {
    fn parse(mut self, body: &[u8], purpose: Purpose) -> Parsed<(RequestFacts, Places)> {
        check_utf8(body)?;
        let mut cursor = Cursor::new(body);
        if cursor.peek()? != Kind::Object {
            return Err(Refusal::from(cursor.fault(Fault::WrongType)));
        }
        cursor.members(|cursor, key| self.member(cursor, &key, purpose))?;
        cursor.end()?;
        self.conclude(purpose)
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>, purpose: Purpose) -> Parsed<()> {
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
        // Sampling parameters share a row and are the provider's to judge.
        let bit = 1 << field as u32;
        if field != Field::Sampling && self.seen & bit != 0 {
            return Err(twice(name, key));
        }
        self.seen |= bit;
        self.known(cursor, name, field, kind, purpose)
    }

    fn known(
        &mut self,
        cursor: &mut Cursor<'_>,
        name: &'static str,
        field: Field,
        kind: Kind,
        purpose: Purpose,
    ) -> Parsed<()> {
        let at = cursor.offset();
        match field {
            Field::Model => {
                let (model, text) = model_name(cursor, self.limits)?;
                self.facts.model = model;
                self.places.model = Some(text.span());
            }
            Field::Messages => self.messages(cursor, kind)?,
            Field::MaxTokens if purpose == Purpose::CountTokens => {
                return Err(Refusal::invalid(name, "`max_tokens` has no place in a count of tokens.").at(at));
            }
            Field::MaxTokens => {
                self.facts.cap_tokens = integer(cursor, name, 1, MAX_CAP_TOKENS)?;
                self.places.max_tokens = Some(crate::json::Span::new(at, cursor.offset()));
            }
            Field::Stream => self.facts.stream = flag(cursor, name)?,
            Field::System => self.system(cursor, kind)?,
            Field::Tools => self.tools(cursor, kind)?,
            Field::ToolChoice => self.facts.has_tool_choice = !cursor.skip()?.is_null(),
            Field::Metadata => self.metadata(cursor, kind)?,
            Field::ServiceTier => self.facts.service_tier = short_text(cursor, name, self.limits)?.map(priced_tier),
            Field::OutputConfig => self.output_config(cursor, kind)?,
            Field::Container => self.container(cursor, kind)?,
            Field::Sampling => {
                let is_set = !cursor.skip()?.is_null();
                if is_set && !self.version.has_sampling() {
                    let message = format!(
                        "`{name}` is not part of API version {}: leave it out, even at its default.",
                        self.version
                    );
                    return Err(Refusal::invalid(name, message).at(at));
                }
            }
        }
        Ok(())
    }

    fn messages(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        if kind != Kind::Array {
            return Err(Refusal::invalid("messages", "`messages` must be an array of messages.").at(at));
        }
        let limits = self.limits;
        let span = cursor.elements(|cursor, index| {
            if index == limits.max_messages {
                let message = format!("`messages` has more than {} entries.", limits.max_messages);
                return Err(Refusal::new(RequestErrorCode::TooMany, "messages", message).at(cursor.offset()));
            }
            if cursor.peek()? != Kind::Object {
                let field = format!("messages[{index}]");
                return Err(Refusal::invalid(&field, format!("`{field}` must be an object.")).at(cursor.offset()));
            }
            self.facts.size.messages = self.facts.size.messages.saturating_add(1);
            cursor.members(|cursor, key| {
                if key.is("content") {
                    return self.contents.read(cursor).map_err(Refusal::from);
                }
                cursor.skip().map(|_| ()).map_err(Refusal::from)
            })?;
            Ok(())
        })?;
        if self.facts.size.messages == 0 {
            return Err(Refusal::invalid("messages", "`messages` is empty: send at least one message.").at(at));
        }
        self.facts.size.text_bytes += span.len() as u64;
        Ok(())
    }

    fn system(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        let at = cursor.offset();
        match kind {
            Kind::String | Kind::Array | Kind::Null => {
                cursor.skip()?;
            }
            Kind::Object | Kind::Number | Kind::True | Kind::False => {
                return Err(Refusal::invalid("system", "`system` must be a string or an array of text blocks.").at(at));
            }
        }
        self.facts.size.text_bytes += (cursor.offset() - at) as u64;
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

    /// One entry of `tools`: the client's own without `type` or with `custom`, or a dated one of the provider's.
    fn tool(&self, cursor: &mut Cursor<'_>) -> Parsed<Tool> {
        let at = cursor.offset();
        if cursor.peek()? != Kind::Object {
            return Err(Refusal::invalid("tools", "Each entry of `tools` must be an object.").at(at));
        }
        let mut tool = Tool { kind: String::from("function"), name: String::new() };
        cursor.members(|cursor, key| {
            let kind = cursor.peek()?;
            if key.is("type") && kind == Kind::String {
                let kind = bounded(&cursor.string()?, "tools", self.limits)?;
                tool.kind = if kind == "custom" { String::from("function") } else { kind };
            } else if key.is("name") && kind == Kind::String {
                tool.name = bounded(&cursor.string()?, "tools", self.limits)?;
            } else {
                cursor.skip()?;
            }
            Ok::<(), Refusal>(())
        })?;
        if tool.kind != "function" || tool.name.is_empty() {
            tool.name.clone_from(&tool.kind);
        }
        Ok(tool)
    }

    fn metadata(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        if kind != Kind::Object {
            cursor.skip()?;
            return Ok(());
        }
        cursor.members(|cursor, key| {
            if key.is("user_id") {
                self.facts.end_user = short_text(cursor, "metadata.user_id", self.limits)?;
                return Ok(());
            }
            cursor.skip().map(|_| ()).map_err(Refusal::from)
        })?;
        Ok(())
    }

    fn output_config(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        if kind != Kind::Object {
            cursor.skip()?;
            return Ok(());
        }
        let at = cursor.offset();
        cursor.members(|cursor, key| {
            let is_set = !cursor.skip()?.is_null();
            if key.is("format") && is_set {
                self.facts.response_format = ResponseFormat::JsonSchema;
                self.facts.need(Capability::JsonSchema);
            }
            Ok::<(), Refusal>(())
        })?;
        self.facts.size.text_bytes += (cursor.offset() - at) as u64;
        Ok(())
    }

    /// A container that an earlier answer made lives at one provider account only.
    fn container(&mut self, cursor: &mut Cursor<'_>, kind: Kind) -> Parsed<()> {
        if kind == Kind::String {
            let id = bounded(&cursor.string()?, "container", self.limits)?;
            self.facts.continues = Some(Continued { field: "container", id });
            return Ok(());
        }
        cursor.skip()?;
        Ok(())
    }

    fn conclude(mut self, purpose: Purpose) -> Parsed<(RequestFacts, Places)> {
        if self.places.model.is_none() {
            return Err(missing("model", "name a model"));
        }
        if self.facts.size.messages == 0 {
            return Err(missing("messages", "send an array of messages"));
        }
        if self.facts.cap_tokens.is_none() && purpose == Purpose::Answer {
            return Err(missing("max_tokens", "say how many tokens the answer may have"));
        }
        let (facts, contents) = (&mut self.facts, &self.contents);
        let data = contents.image_bytes.saturating_add(contents.document_bytes);
        facts.size.text_bytes = facts.size.text_bytes.saturating_sub(data);
        facts.data_url_bytes = contents.image_bytes;
        facts.size.images = contents.images;
        facts.size.file_bytes = contents.document_bytes;
        facts.size.file_references = contents.document_references;
        if facts.stream {
            facts.need(Capability::Streaming);
        }
        if contents.images > 0 {
            facts.need(Capability::Vision);
        }
        Ok((self.facts, self.places))
    }
}

/// The tier under which prices know it: `standard_only` asks for what answers call `standard`.
fn priced_tier(tier: String) -> String {
    if tier == "standard_only" { "standard".to_owned() } else { tier }
}
