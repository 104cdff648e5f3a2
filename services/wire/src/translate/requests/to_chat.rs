//! A message request for a target of chat completions.
//!
//! Rules a reader would question:
//! - `thinking` that is adaptive or disabled asks for what these models do by themselves; a budget has no counterpart and
//!   is refused. `output_config.effort` is `reasoning_effort`.
//! - Thinking in the history goes on as `reasoning_content` when it has no signature, as models behind this protocol
//!   gave it; a signed or redacted one belongs to its provider and is refused (O35).
//! - An error mark of a tool result has no member of its own there, so it is said in words, before the result.
//! - `cache_control` stays behind and is named in `left_out`: these providers cache prefixes without being asked.

use bytes::BytesMut;

use super::super::fields::{Carried, Fields};
use crate::anthropic::messages::MessagesRequest;
use crate::json::{Kind, Node, Text, Writer};
use crate::request::{Target, UpstreamRequest};
use crate::translate::Untranslatable;

/// The most stop sequences of the chat API.
const MOST_STOPS: usize = 4;
/// What a failed tool's result begins with.
const ERROR_MARK: &str = "[is_error: true]";

/// The body for a target of chat completions.
pub(crate) fn messages_to_chat(request: &MessagesRequest, target: &Target<'_>) -> Carried<UpstreamRequest> {
    let mut carry = Carry { left_out: Vec::new() };
    let mut fields = Fields::read(Node::of(request.body())?, "")?;
    let mut out = BytesMut::with_capacity(request.body().len() + 256);
    let mut writer = Writer::new(&mut out);
    writer.open(b'{').member("model", target.model);
    for name in ["model", "max_tokens"] {
        fields.take(name);
    }
    if let Some(cap) = target.cap.or(request.facts().cap_tokens) {
        writer.key(target.cap_field.name()).number(cap);
    }
    if fields.flag("stream")?.unwrap_or(false) {
        writer.raw_member("stream", b"true");
        if target.supports_stream_options {
            writer.raw_member("stream_options", br#"{"include_usage":true}"#);
        }
    }
    writer.key("messages").open(b'[');
    carry.system(&mut fields, &mut writer)?;
    let messages = fields.array("messages")?.ok_or_else(|| Untranslatable::new("messages", "is missing."))?;
    messages.elements(|index, message| carry.message(message, &format!("messages[{index}]"), &mut writer))?;
    writer.close(b']');
    for name in ["temperature", "top_p"] {
        if let Some(digits) = fields.number(name)? {
            writer.raw_member(name, digits);
        }
    }
    stop_sequences(&mut fields, &mut writer)?;
    carry.tools(&mut fields, &mut writer)?;
    thinking(&mut fields)?;
    output_config(&mut fields, &mut writer)?;
    rest(&mut fields, &mut writer)?;
    fields.leave("cache_control", &mut carry.left_out);
    fields.end()?;
    writer.close(b'}');
    Ok(UpstreamRequest::whole(out.freeze(), carry.left_out))
}

struct Carry {
    left_out: Vec<String>,
}

impl Carry {
    fn system(&mut self, fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
        let path = fields.at("system");
        let Some(system) = fields.take("system").filter(|system| !system.is_empty()) else { return Ok(()) };
        writer.open(b'{').member("role", "system").key("content");
        if system.kind == Kind::String {
            writer.raw(system.raw);
        } else {
            writer.open(b'[');
            system.elements(|index, block| self.only_text(block, &format!("{path}[{index}]"), writer))?;
            writer.close(b']');
        }
        writer.close(b'}');
        Ok(())
    }

    fn message(&mut self, message: Node<'_>, path: &str, writer: &mut Writer<'_>) -> Carried<()> {
        let mut fields = Fields::read(message, path)?;
        let role = fields.required_text("role")?;
        let content_path = fields.at("content");
        let content =
            fields.take("content").ok_or_else(|| Untranslatable::new(content_path.as_str(), "is missing."))?;
        if !matches!(content.kind, Kind::String | Kind::Array) {
            return Err(Untranslatable::new(content_path, "must be a string or an array of blocks."));
        }
        match role.decode().as_ref() {
            "user" => self.user(content, &content_path, writer)?,
            "assistant" => self.assistant(content, &content_path, writer)?,
            _ => return Err(Untranslatable::unknown(fields.at("role"))),
        }
        fields.end()
    }

    /// Tool results are messages of their own; what stands between them keeps its place.
    fn user(&mut self, content: Node<'_>, path: &str, writer: &mut Writer<'_>) -> Carried<()> {
        if content.kind == Kind::String {
            writer.open(b'{').member("role", "user").raw_member("content", content.raw).close(b'}');
            return Ok(());
        }
        let mut is_open = false;
        content.elements(|index, block| {
            let mut fields = Fields::read(block, format!("{path}[{index}]"))?;
            let kind = fields.required_text("type")?;
            let is_result = kind.is("tool_result");
            if is_open && is_result {
                writer.close(b']').close(b'}');
            } else if !is_open && !is_result {
                writer.open(b'{').member("role", "user").key("content").open(b'[');
            }
            is_open = !is_result;
            match kind.decode().as_ref() {
                "tool_result" => self.tool_result(&mut fields, writer)?,
                "text" => self.text(&mut fields, writer)?,
                "image" => self.image(&mut fields, writer)?,
                "document" => self.document(&mut fields, writer)?,
                _ => return Err(Untranslatable::unknown(fields.at("type"))),
            }
            fields.end()
        })?;
        if is_open {
            writer.close(b']').close(b'}');
        }
        Ok(())
    }

    fn tool_result(&mut self, fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
        let id = fields.required_text("tool_use_id")?;
        let has_failed = fields.flag("is_error")?.unwrap_or(false);
        fields.leave("cache_control", &mut self.left_out);
        let path = fields.at("content");
        let content = fields.take("content");
        writer.open(b'{').member("role", "tool").member("tool_call_id", &id.decode()).key("content");
        match content {
            None if !has_failed => {
                writer.text("");
            }
            Some(text) if text.kind == Kind::String && !has_failed => {
                writer.raw(text.raw);
            }
            content => {
                writer.open(b'[');
                if has_failed {
                    writer.open(b'{').member("type", "text").member("text", ERROR_MARK).close(b'}');
                }
                if let Some(text) = content.and_then(Node::text) {
                    writer.open(b'{').member("type", "text").member("text", &text.decode()).close(b'}');
                }
                if let Some(blocks) = content {
                    blocks.elements(|index, block| self.only_text(block, &format!("{path}[{index}]"), writer))?;
                }
                writer.close(b']');
            }
        }
        writer.close(b'}');
        Ok(())
    }

    /// A block of a place where only text can go.
    fn only_text(&mut self, block: Node<'_>, path: &str, writer: &mut Writer<'_>) -> Carried<()> {
        let mut fields = Fields::read(block, path)?;
        if !fields.required_text("type")?.is("text") {
            return Err(Untranslatable::unknown(fields.at("type")));
        }
        self.text(&mut fields, writer)?;
        fields.end()
    }

    fn text(&mut self, fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
        let text = self.bare_text(fields)?;
        writer.open(b'{').member("type", "text").member("text", &text.decode()).close(b'}');
        Ok(())
    }

    fn bare_text<'a>(&mut self, fields: &mut Fields<'a>) -> Carried<Text<'a>> {
        let text = fields.required_text("text")?;
        fields.leave("cache_control", &mut self.left_out);
        fields.only_default("citations", |node| node.is_empty())?;
        Ok(text)
    }

    fn image(&mut self, fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
        fields.leave("cache_control", &mut self.left_out);
        let source = Source::read(fields)?;
        let address = match source {
            Source::Base64 { media_type, data } => format!("data:{media_type};base64,{data}"),
            Source::Url(url) => url,
        };
        writer.open(b'{').member("type", "image_url").key("image_url").open(b'{').member("url", &address);
        writer.close(b'}').close(b'}');
        Ok(())
    }

    fn document(&mut self, fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
        fields.leave("cache_control", &mut self.left_out);
        fields.only_default("citations", |node| {
            node.is_empty() || node.get("enabled").is_some_and(|enabled| enabled.kind == Kind::False)
        })?;
        let path = fields.at("source");
        let Source::Base64 { media_type, data } = Source::read(fields)? else {
            return Err(Untranslatable::unknown(path));
        };
        let title = fields.text("title")?.map_or_else(|| String::from("document.pdf"), |title| title.decode().into());
        writer.open(b'{').member("type", "file").key("file").open(b'{').member("filename", &title);
        writer.member("file_data", &format!("data:{media_type};base64,{data}")).close(b'}').close(b'}');
        Ok(())
    }

    fn assistant(&mut self, content: Node<'_>, path: &str, writer: &mut Writer<'_>) -> Carried<()> {
        let mut said = Said::default();
        match content.text() {
            Some(text) => said.texts.push(text.decode().into_owned()),
            None => content.elements(|index, block| {
                let mut fields = Fields::read(block, format!("{path}[{index}]"))?;
                let kind = fields.required_text("type")?;
                match kind.decode().as_ref() {
                    "text" => said.texts.push(self.bare_text(&mut fields)?.decode().into_owned()),
                    "thinking" => said.thinking.push_str(&unsigned(&mut fields)?),
                    "tool_use" => {
                        fields.leave("cache_control", &mut self.left_out);
                        said.calls.push(Call::read(&mut fields)?);
                    }
                    _ => return Err(Untranslatable::unknown(fields.at("type"))),
                }
                fields.end()
            })?,
        }
        said.write(writer);
        Ok(())
    }

    fn tools(&mut self, fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
        let tools = fields.array("tools")?.filter(|tools| !tools.is_empty());
        if let Some(tools) = tools {
            writer.key("tools").open(b'[');
            tools.elements(|index, tool| self.tool(tool, &format!("tools[{index}]"), writer))?;
            writer.close(b']');
        }
        let Some(choice) = fields.object("tool_choice")? else { return Ok(()) };
        let mut choice = Fields::read(choice, fields.at("tool_choice"))?;
        let kind = choice.required_text("type")?;
        match kind.decode().as_ref() {
            "auto" => writer.member("tool_choice", "auto"),
            "none" => writer.member("tool_choice", "none"),
            "any" => writer.member("tool_choice", "required"),
            "tool" => {
                let name = choice.required_text("name")?;
                writer.key("tool_choice").open(b'{').member("type", "function").key("function").open(b'{');
                writer.member("name", &name.decode()).close(b'}').close(b'}')
            }
            _ => return Err(Untranslatable::unknown(choice.at("type"))),
        };
        if choice.flag("disable_parallel_tool_use")? == Some(true) && tools.is_some() {
            writer.raw_member("parallel_tool_calls", b"false");
        }
        choice.end()
    }

    fn tool(&mut self, tool: Node<'_>, path: &str, writer: &mut Writer<'_>) -> Carried<()> {
        let mut fields = Fields::read(tool, path)?;
        if fields.text("type")?.is_some_and(|kind| !kind.is("custom")) {
            return Err(Untranslatable::unknown(fields.at("type")));
        }
        fields.leave("cache_control", &mut self.left_out);
        let name = fields.required_text("name")?;
        writer.open(b'{').member("type", "function").key("function").open(b'{').member("name", &name.decode());
        if let Some(description) = fields.text("description")? {
            writer.member("description", &description.decode());
        }
        let missing = || Untranslatable::new(format!("{path}.input_schema"), "is missing.");
        writer.raw_member("parameters", fields.object("input_schema")?.ok_or_else(missing)?.raw);
        if fields.flag("strict")? == Some(true) {
            writer.raw_member("strict", b"true");
        }
        writer.close(b'}').close(b'}');
        fields.end()
    }
}

/// What an assistant's turn says, in the parts that a chat message has.
#[derive(Default)]
struct Said {
    texts: Vec<String>,
    thinking: String,
    calls: Vec<Call>,
}

struct Call {
    id: String,
    name: String,
    /// The object's bytes, as text.
    input: String,
}

impl Call {
    fn read(fields: &mut Fields<'_>) -> Carried<Self> {
        let (id, name) = (fields.required_text("id")?, fields.required_text("name")?);
        let input = fields.object("input")?;
        let input = input.ok_or_else(|| Untranslatable::new(fields.at("input"), "is missing."))?;
        let input = String::from_utf8_lossy(input.raw).into_owned();
        fields.only_default("caller", |node| {
            node.get("type").and_then(Node::text).is_some_and(|kind| kind.is("direct"))
        })?;
        Ok(Self { id: id.decode().into_owned(), name: name.decode().into_owned(), input })
    }
}

impl Said {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.open(b'{').member("role", "assistant");
        match self.texts.as_slice() {
            [] => writer.raw_member("content", b"null"),
            [text] => writer.member("content", text),
            texts => {
                writer.key("content").open(b'[');
                for text in texts {
                    writer.open(b'{').member("type", "text").member("text", text).close(b'}');
                }
                writer.close(b']')
            }
        };
        if !self.thinking.is_empty() {
            writer.member("reasoning_content", &self.thinking);
        }
        if !self.calls.is_empty() {
            writer.key("tool_calls").open(b'[');
            for call in &self.calls {
                writer.open(b'{').member("id", &call.id).member("type", "function").key("function").open(b'{');
                writer.member("name", &call.name).member("arguments", &call.input).close(b'}').close(b'}');
            }
            writer.close(b']');
        }
        writer.close(b'}');
    }
}

/// The text of a thinking block without a signature.
fn unsigned(fields: &mut Fields<'_>) -> Carried<String> {
    let signature = fields.text("signature")?;
    if signature.is_some_and(|signature| !signature.is_empty()) {
        return Err(Untranslatable::new(
            fields.path(),
            "is signed by the provider that thought it, and no other takes it.",
        ));
    }
    Ok(fields.text("thinking")?.map(|text| text.decode().into_owned()).unwrap_or_default())
}

enum Source {
    Base64 { media_type: String, data: String },
    Url(String),
}

impl Source {
    fn read(fields: &mut Fields<'_>) -> Carried<Self> {
        let path = fields.at("source");
        let source = fields.object("source")?.ok_or_else(|| Untranslatable::new(path.as_str(), "is missing."))?;
        let mut source = Fields::read(source, path)?;
        let kind = source.required_text("type")?;
        let read = match kind.decode().as_ref() {
            "base64" => Self::Base64 {
                media_type: source.required_text("media_type")?.decode().into_owned(),
                data: source.required_text("data")?.decode().into_owned(),
            },
            "url" => Self::Url(source.required_text("url")?.decode().into_owned()),
            _ => return Err(Untranslatable::unknown(source.at("type"))),
        };
        source.end()?;
        Ok(read)
    }
}

fn stop_sequences(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let path = fields.at("stop_sequences");
    let Some(stops) = fields.array("stop_sequences")?.filter(|stops| !stops.is_empty()) else { return Ok(()) };
    stops.elements(|index, stop| {
        if index == MOST_STOPS {
            return Err(Untranslatable::new(path.as_str(), "has more than the 4 that this model's provider takes."));
        }
        match stop.kind {
            Kind::String => Ok(()),
            Kind::Object | Kind::Array | Kind::Number | Kind::True | Kind::False | Kind::Null => {
                Err(Untranslatable::new(path.as_str(), "must be strings."))
            }
        }
    })?;
    writer.raw_member("stop", stops.raw);
    Ok(())
}

fn thinking(fields: &mut Fields<'_>) -> Carried<()> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(()) };
    let mut thinking = Fields::read(thinking, fields.at("thinking"))?;
    let kind = thinking.required_text("type")?;
    match kind.decode().as_ref() {
        "adaptive" | "disabled" => {}
        "enabled" => return Err(Untranslatable::unknown(thinking.at("budget_tokens"))),
        _ => return Err(Untranslatable::unknown(thinking.at("type"))),
    }
    // How much of it is shown: what these models show is all there is.
    thinking.take("display");
    thinking.end()
}

fn output_config(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let Some(config) = fields.object("output_config")? else { return Ok(()) };
    let mut config = Fields::read(config, fields.at("output_config"))?;
    if let Some(effort) = config.text("effort")? {
        writer.member("reasoning_effort", &effort.decode());
    }
    if let Some(format) = config.object("format")? {
        let mut format = Fields::read(format, config.at("format"))?;
        if !format.required_text("type")?.is("json_schema") {
            return Err(Untranslatable::unknown(format.at("type")));
        }
        let missing = || Untranslatable::new("output_config.format.schema", "is missing.");
        let schema = format.object("schema")?.ok_or_else(missing)?;
        format.end()?;
        writer.key("response_format").open(b'{').member("type", "json_schema").key("json_schema").open(b'{');
        writer.member("name", "output").raw_member("schema", schema.raw).raw_member("strict", b"true");
        writer.close(b'}').close(b'}');
    }
    config.end()
}

/// The end user, the tier, and members that may say their default.
fn rest(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    if let Some(metadata) = fields.object("metadata")? {
        let mut metadata = Fields::read(metadata, fields.at("metadata"))?;
        if let Some(user) = metadata.text("user_id")? {
            writer.member("user", &user.decode());
        }
        metadata.end()?;
    }
    if let Some(tier) = fields.text("service_tier")? {
        match tier.decode().as_ref() {
            "auto" => writer.member("service_tier", "auto"),
            "standard_only" => writer.member("service_tier", "default"),
            _ => return Err(Untranslatable::unknown(fields.at("service_tier"))),
        };
    }
    fields.only_default("speed", |node| node.text().is_some_and(|text| text.is("standard")))
}
