//! The messages of a chat request as Anthropic turns.
//!
//! System and developer messages at the start become `system`. One in the middle of the talk is refused by name: moved to
//! the start it would say something else, and as a user's words it would be somebody else's (O31). Neighbours of one role
//! are one turn, tool results first in it (O26). Texts that are empty or blank say nothing and are refused over there, so
//! they are not sent, and a turn of which nothing is left is not either (O27); thinking is never touched by that (O35).

use bytes::BytesMut;

use super::arguments_object;
use crate::json::{Kind, Node, Text, Writer};
use crate::translate::Untranslatable;
use crate::translate::fields::{Carried, Fields};
use crate::translate::streams::REASONING_FORMAT;

/// Writes `system` and `messages`.
pub(super) fn write_turns(messages: Node<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let mut turns = Turns::default();
    messages.elements(|index, message| turns.message(message, index))?;
    turns.flush();
    if turns.messages.is_empty() {
        return Err(Untranslatable::new("messages", "says nothing: send a message with content."));
    }
    if !turns.system.is_empty() {
        writer.key("system").open(b'[').raw(&turns.system).close(b']');
    }
    writer.key("messages").open(b'[').raw(&turns.messages).close(b']');
    Ok(())
}

#[derive(Debug, Default)]
struct Turns {
    /// Elements of the arrays, separated by commas.
    system: BytesMut,
    messages: BytesMut,
    /// Whose turn was written last.
    written: Option<Role>,
    /// The open turn: its role, its tool results, its other blocks.
    role: Option<Role>,
    results: BytesMut,
    blocks: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
}

impl Turns {
    fn message(&mut self, message: Node<'_>, index: usize) -> Carried<()> {
        let mut fields = Fields::read(message, format!("messages[{index}]"))?;
        let role = fields.required_text("role")?.decode().into_owned();
        match role.as_str() {
            "system" | "developer" => self.system(&mut fields)?,
            "user" => {
                self.turn(Role::User);
                self.user(&mut fields)?;
            }
            "assistant" => {
                self.turn(Role::Assistant);
                self.assistant(&mut fields)?;
            }
            "tool" => {
                // A result after the text of the same turn would be refused: the text's turn ends here.
                if self.role == Some(Role::User) && !self.blocks.is_empty() {
                    self.flush();
                }
                self.turn(Role::User);
                self.tool(&mut fields)?;
            }
            _ => return Err(Untranslatable::unknown(fields.at("role"))),
        }
        fields.end()
    }

    /// Opens a turn of `role`, unless it is open.
    fn turn(&mut self, role: Role) {
        if self.role != Some(role) {
            self.flush();
            self.role = Some(role);
        }
    }

    fn flush(&mut self) {
        let (results, blocks) = (self.results.split(), self.blocks.split());
        let Some(role) = self.role.take().filter(|_| !(results.is_empty() && blocks.is_empty())) else { return };
        let goes_on = self.written.replace(role) == Some(role);
        if goes_on {
            // A turn between two of this role said nothing: they are one, so its closing brackets go.
            self.messages.truncate(self.messages.len().saturating_sub(2));
        }
        let mut writer = Writer::new(&mut self.messages);
        if !goes_on {
            let name = match role {
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            writer.open(b'{').member("role", name).key("content").open(b'[');
        }
        for part in [results, blocks].iter().filter(|part| !part.is_empty()) {
            writer.raw(part);
        }
        writer.close(b']').close(b'}');
    }

    fn system(&mut self, fields: &mut Fields<'_>) -> Carried<()> {
        if self.role.is_some() || !self.messages.is_empty() {
            let why = "is a system or developer message in the middle of the talk, which this model's provider cannot \
                       be given there: put it first.";
            return Err(Untranslatable::new(fields.path(), why));
        }
        let path = fields.at("content");
        let out = &mut self.system;
        each_text(fields.take("content"), &path, |text| push_text(out, text))
    }

    fn user(&mut self, fields: &mut Fields<'_>) -> Carried<()> {
        let path = fields.at("content");
        match fields.take("content") {
            None => Ok(()),
            Some(content) if content.kind == Kind::Array => {
                content.elements(|index, part| user_part(part, &format!("{path}[{index}]"), &mut self.blocks))
            }
            content => each_text(content, &path, |text| push_text(&mut self.blocks, text)),
        }
    }

    fn assistant(&mut self, fields: &mut Fields<'_>) -> Carried<()> {
        thinking(fields, &mut self.blocks)?;
        let path = fields.at("content");
        let out = &mut self.blocks;
        each_text(fields.take("content"), &path, |text| push_text(out, text))?;
        let path = fields.at("tool_calls");
        if let Some(calls) = fields.array("tool_calls")? {
            calls.elements(|index, call| tool_call(call, &format!("{path}[{index}]"), &mut self.blocks))?;
        }
        // An empty list, as answers have it.
        fields.only_default("annotations", |node| node.is_empty())
    }

    fn tool(&mut self, fields: &mut Fields<'_>) -> Carried<()> {
        let id = fields.required_text("tool_call_id")?;
        let path = fields.at("content");
        let mut content = BytesMut::new();
        each_text(fields.take("content"), &path, |text| push_text(&mut content, text))?;
        let mut writer = Writer::new(&mut self.results);
        writer.open(b'{').member("type", "tool_result").member("tool_use_id", &id.decode());
        if !content.is_empty() {
            writer.key("content").open(b'[').raw(&content).close(b']');
        }
        writer.close(b'}');
        Ok(())
    }
}

/// Calls `give` for a content that is one text, or for each text part of a list.
fn each_text<'a>(content: Option<Node<'a>>, path: &str, mut give: impl FnMut(Text<'a>)) -> Carried<()> {
    let Some(content) = content else { return Ok(()) };
    if let Some(text) = content.text() {
        give(text);
        return Ok(());
    }
    if content.kind != Kind::Array {
        return Err(Untranslatable::new(path, "must be a string or an array of parts."));
    }
    content.elements(|index, part| {
        let mut part = Fields::read(part, format!("{path}[{index}]"))?;
        if !part.required_text("type")?.is("text") {
            return Err(Untranslatable::unknown(part.at("type")));
        }
        give(part.required_text("text")?);
        part.end()
    })
}

/// Appends a text block, unless it says nothing.
fn push_text(out: &mut BytesMut, text: Text<'_>) {
    if text.decode().trim().is_empty() {
        return;
    }
    Writer::new(out).open(b'{').member("type", "text").member("text", &text.decode()).close(b'}');
}

fn user_part(part: Node<'_>, path: &str, out: &mut BytesMut) -> Carried<()> {
    let mut part = Fields::read(part, path)?;
    let kind = part.required_text("type")?;
    match kind.decode().as_ref() {
        "text" => push_text(out, part.required_text("text")?),
        "image_url" => image(&mut part, out)?,
        "file" => file(&mut part, out)?,
        _ => return Err(Untranslatable::unknown(part.at("type"))),
    }
    part.end()
}

fn image(part: &mut Fields<'_>, out: &mut BytesMut) -> Carried<()> {
    let path = part.at("image_url");
    let image = part.object("image_url")?.ok_or_else(|| Untranslatable::new(path.as_str(), "is missing."))?;
    let mut image = Fields::read(image, path)?;
    let address = image.required_text("url")?;
    image.only_default("detail", |node| node.text().is_some_and(|text| text.is("auto")))?;
    let address = address.decode();
    let mut writer = Writer::new(out);
    writer.open(b'{').member("type", "image").key("source").open(b'{');
    match data_url(&address) {
        Some((media_type, data)) => {
            writer.member("type", "base64").member("media_type", media_type).member("data", data);
        }
        None if address.starts_with("https://") || address.starts_with("http://") => {
            writer.member("type", "url").member("url", &address);
        }
        None => return Err(Untranslatable::new(image.at("url"), "must be a web address or a base64 data URL.")),
    }
    writer.close(b'}').close(b'}');
    image.end()
}

fn file(part: &mut Fields<'_>, out: &mut BytesMut) -> Carried<()> {
    let path = part.at("file");
    let file = part.object("file")?.ok_or_else(|| Untranslatable::new(path.as_str(), "is missing."))?;
    let mut file = Fields::read(file, path)?;
    let data = file.required_text("file_data")?.decode().into_owned();
    let Some(("application/pdf", data)) = data_url(&data) else {
        return Err(Untranslatable::new(file.at("file_data"), "must be a base64 data URL of a PDF."));
    };
    let mut writer = Writer::new(out);
    writer.open(b'{').member("type", "document").key("source").open(b'{').member("type", "base64");
    writer.member("media_type", "application/pdf").member("data", data).close(b'}');
    if let Some(name) = file.text("filename")? {
        writer.member("title", &name.decode());
    }
    writer.close(b'}');
    file.end()
}

/// Media type and data of `data:TYPE;base64,DATA`.
fn data_url(address: &str) -> Option<(&str, &str)> {
    let scheme = address.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("data:"))?;
    address[scheme.len()..].split_once(";base64,")
}

fn tool_call(call: Node<'_>, path: &str, out: &mut BytesMut) -> Carried<()> {
    let mut call = Fields::read(call, path)?;
    let id = call.required_text("id")?;
    // The index is of streams, whose pieces some clients send back as they put them together.
    call.take("index");
    if call.text("type")?.is_some_and(|kind| !kind.is("function")) {
        return Err(Untranslatable::unknown(call.at("type")));
    }
    let function_path = call.at("function");
    let missing = || Untranslatable::new(function_path.as_str(), "is missing.");
    let mut function = Fields::read(call.object("function")?.ok_or_else(missing)?, function_path.as_str())?;
    let name = function.required_text("name")?;
    let arguments = function.text("arguments")?;
    let input = arguments_object(arguments, &function.at("arguments"))?;
    let mut writer = Writer::new(out);
    writer.open(b'{').member("type", "tool_use").member("id", &id.decode()).member("name", &name.decode());
    writer.raw_member("input", &input).close(b'}');
    function.end()?;
    call.end()
}

/// Thinking that an Anthropic model gave goes back as it came. Reasoning without its signature cannot: the provider
/// would refuse it, and left out it would be dropped in silence.
fn thinking(fields: &mut Fields<'_>, out: &mut BytesMut) -> Carried<()> {
    let path = fields.at("reasoning_details");
    let details = fields.array("reasoning_details")?.filter(|details| !details.is_empty());
    for name in ["reasoning_content", "reasoning"] {
        let at = fields.at(name);
        let said = fields.take(name).filter(|node| !node.is_empty());
        if said.is_some() && details.is_none() {
            let why = "has no signature, without which this model's provider takes no reasoning: send \
                       `reasoning_details` as they came, or leave it out.";
            return Err(Untranslatable::new(at, why));
        }
    }
    for name in ["refusal", "audio", "function_call"] {
        fields.only_default(name, |node| node.is_null())?;
    }
    let Some(details) = details else { return Ok(()) };
    let mut thoughts = Thoughts { out, open: None };
    details.elements(|index, detail| thoughts.detail(detail, &format!("{path}[{index}]")))?;
    thoughts.close(&path)
}

/// Details put together to blocks: the pieces of one thought have one index.
struct Thoughts<'o> {
    out: &'o mut BytesMut,
    open: Option<Thought>,
}

#[derive(Default)]
struct Thought {
    index: Option<u64>,
    text: String,
    signature: String,
}

impl Thoughts<'_> {
    fn detail(&mut self, detail: Node<'_>, path: &str) -> Carried<()> {
        let mut fields = Fields::read(detail, path)?;
        let kind = fields.required_text("type")?;
        let index = fields.take("index").and_then(Node::count);
        fields.take("id");
        if fields.text("format")?.is_some_and(|format| !format.is(REASONING_FORMAT)) {
            return Err(Untranslatable::new(fields.at("format"), "is of another model's provider."));
        }
        if kind.is("reasoning.encrypted") {
            self.close(path)?;
            let data = fields.required_text("data")?;
            let mut writer = Writer::new(self.out);
            writer.open(b'{').member("type", "redacted_thinking").member("data", &data.decode()).close(b'}');
            return fields.end();
        }
        if !kind.is("reasoning.text") {
            return Err(Untranslatable::unknown(fields.at("type")));
        }
        let is_next = self.open.as_ref().is_some_and(|open| open.index != index || index.is_none());
        if is_next {
            self.close(path)?;
        }
        let open = self.open.get_or_insert_with(|| Thought { index, ..Thought::default() });
        if let Some(text) = fields.text("text")? {
            open.text.push_str(&text.decode());
        }
        if let Some(signature) = fields.text("signature")? {
            open.signature.push_str(&signature.decode());
        }
        fields.end()
    }

    fn close(&mut self, path: &str) -> Carried<()> {
        let Some(thought) = self.open.take() else { return Ok(()) };
        if thought.signature.is_empty() {
            return Err(Untranslatable::new(path, "has a text without its signature."));
        }
        let mut writer = Writer::new(self.out);
        writer.open(b'{').member("type", "thinking").member("thinking", &thought.text);
        writer.member("signature", &thought.signature).close(b'}');
        Ok(())
    }
}
