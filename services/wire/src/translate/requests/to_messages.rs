//! A chat completion request for an Anthropic target.
//!
//! Rules a reader would question:
//! - The cap is required there: the target's own stands in where nobody named one.
//! - `temperature` and `top_p` go under API version 2023-06-01 only; the newer one refuses them, so they are refused here
//!   unless they say the default. Above 1 a temperature has no counterpart.
//! - `reasoning_effort` is `output_config.effort`, which knows the same words but `minimal`; `none` switches thinking off.
//! - `strict` of a tool and a JSON schema as `response_format` have counterparts of the same meaning; `json_object` has
//!   none. The schema's `name` and `description` are labels without one.
//! - Members that only advise the provider's cache stay behind and are named in `left_out`.

use bytes::BytesMut;

use super::turns::write_turns;
use crate::json::{Kind, Node, Writer};
use crate::openai::chat::ChatRequest;
use crate::request::{Target, UpstreamRequest};
use crate::translate::Untranslatable;
use crate::translate::fields::{Carried, Fields, is_number};

/// The body for an Anthropic target.
pub(crate) fn chat_to_messages(request: &ChatRequest, target: &Target<'_>) -> Carried<UpstreamRequest> {
    let mut fields = Fields::read(Node::of(request.body())?, "")?;
    let mut left_out = Vec::new();
    let Some(cap) = target.cap else {
        return Err(Untranslatable::new("max_tokens", "is required by this model's provider: say a cap."));
    };
    let mut out = BytesMut::with_capacity(request.body().len() + 256);
    let mut writer = Writer::new(&mut out);
    writer.open(b'{').member("model", target.model).key("max_tokens").number(cap);
    for name in ["model", "max_tokens", "max_completion_tokens", "stream_options"] {
        fields.take(name);
    }
    if fields.flag("stream")?.unwrap_or(false) {
        writer.raw_member("stream", b"true");
    }
    let messages = fields.array("messages")?.ok_or_else(|| Untranslatable::new("messages", "is missing."))?;
    write_turns(messages, &mut writer)?;
    sampling(&mut fields, target, &mut writer)?;
    stop(&mut fields, &mut writer)?;
    tools(&mut fields, &mut writer)?;
    output_config(&mut fields, &mut writer)?;
    end_user(&mut fields, &mut writer)?;
    service_tier(&mut fields, &mut writer)?;
    defaults(&mut fields, &mut left_out)?;
    fields.end()?;
    writer.close(b'}');
    Ok(UpstreamRequest::whole(out.freeze(), left_out))
}

fn sampling(fields: &mut Fields<'_>, target: &Target<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    for name in ["temperature", "top_p"] {
        let Some(digits) = fields.number(name)? else { continue };
        if is_number(digits, "1") {
            continue;
        }
        if !target.version.has_sampling() {
            return Err(Untranslatable::new(
                fields.at(name),
                "is not part of the provider's API version: leave it out.",
            ));
        }
        let is_fraction = digits.starts_with(b"0") && !digits.iter().any(|digit| matches!(digit, b'e' | b'E'));
        if !is_fraction {
            return Err(Untranslatable::new(fields.at(name), "must be from 0 to 1 for this model's provider."));
        }
        writer.raw_member(name, digits);
    }
    Ok(())
}

fn stop(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let path = fields.at("stop");
    let Some(stop) = fields.take("stop") else { return Ok(()) };
    match stop.kind {
        Kind::String => {
            writer.key("stop_sequences").open(b'[').raw(stop.raw).close(b']');
        }
        Kind::Array => {
            stop.elements(|_, sequence| match sequence.kind {
                Kind::String => Ok(()),
                Kind::Object | Kind::Array | Kind::Number | Kind::True | Kind::False | Kind::Null => {
                    Err(Untranslatable::new(path.as_str(), "must be strings."))
                }
            })?;
            if !stop.is_empty() {
                writer.raw_member("stop_sequences", stop.raw);
            }
        }
        Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => {
            return Err(Untranslatable::new(path, "must be a string or an array of strings."));
        }
    }
    Ok(())
}

fn tools(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let tools = fields.array("tools")?.filter(|tools| !tools.is_empty());
    if let Some(tools) = tools {
        writer.key("tools").open(b'[');
        tools.elements(|index, tool| write_tool(tool, &format!("tools[{index}]"), writer))?;
        writer.close(b']');
    }
    let parallel = fields.flag("parallel_tool_calls")?;
    let path = fields.at("tool_choice");
    let (kind, name) = match fields.take("tool_choice") {
        None => (None, None),
        Some(choice) => read_choice(choice, &path)?,
    };
    let is_serial = parallel == Some(false) && tools.is_some();
    if kind.is_none() && !is_serial {
        return Ok(());
    }
    let kind = kind.unwrap_or("auto");
    writer.key("tool_choice").open(b'{').member("type", kind);
    if let Some(name) = name {
        writer.raw_member("name", name.raw);
    }
    if is_serial && kind != "none" {
        writer.raw_member("disable_parallel_tool_use", b"true");
    }
    writer.close(b'}');
    Ok(())
}

/// A choice's word there, and the name of the tool that must be called.
fn read_choice<'a>(choice: Node<'a>, path: &str) -> Carried<(Option<&'static str>, Option<Node<'a>>)> {
    if let Some(word) = choice.text() {
        return match word.decode().as_ref() {
            "auto" => Ok((Some("auto"), None)),
            "none" => Ok((Some("none"), None)),
            "required" => Ok((Some("any"), None)),
            _ => Err(Untranslatable::new(path, "must be auto, none, required, or name a function.")),
        };
    }
    let mut fields = Fields::read(choice, path)?;
    let kind = fields.required_text("type")?;
    if !kind.is("function") {
        return Err(Untranslatable::unknown(fields.at("type")));
    }
    let function = fields.object("function")?;
    let mut function = Fields::read(function.ok_or_else(|| Untranslatable::new(path, "names no function."))?, path)?;
    let name = function.take("name").filter(|name| name.kind == Kind::String);
    function.end()?;
    fields.end()?;
    name.map(|name| (Some("tool"), Some(name))).ok_or_else(|| Untranslatable::new(path, "names no function."))
}

fn write_tool(tool: Node<'_>, path: &str, writer: &mut Writer<'_>) -> Carried<()> {
    let mut tool = Fields::read(tool, path)?;
    let kind = tool.required_text("type")?;
    if !kind.is("function") {
        return Err(Untranslatable::unknown(tool.at("type")));
    }
    let missing = || Untranslatable::new(format!("{path}.function"), "is missing.");
    let mut function = Fields::read(tool.object("function")?.ok_or_else(missing)?, tool.at("function"))?;
    tool.end()?;
    let name = function.required_text("name")?;
    writer.open(b'{').member("name", &name.decode());
    if let Some(description) = function.text("description")? {
        writer.member("description", &description.decode());
    }
    match function.object("parameters")? {
        Some(schema) => writer.raw_member("input_schema", schema.raw),
        // A function without parameters takes an empty object.
        None => writer.raw_member("input_schema", br#"{"type":"object","properties":{}}"#),
    };
    if function.flag("strict")? == Some(true) {
        writer.raw_member("strict", b"true");
    }
    function.end()?;
    writer.close(b'}');
    Ok(())
}

fn output_config(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let effort_path = fields.at("reasoning_effort");
    let effort = fields.text("reasoning_effort")?;
    let word = effort.map(|effort| effort.decode().into_owned());
    let effort = match word.as_deref() {
        None => None,
        Some("none") => {
            writer.key("thinking").open(b'{').member("type", "disabled").close(b'}');
            None
        }
        Some(word @ ("low" | "medium" | "high" | "xhigh" | "max")) => Some(word),
        Some(_) => return Err(Untranslatable::unknown(effort_path)),
    };
    let schema = match fields.object("response_format")? {
        Some(format) => read_format(format)?,
        None => None,
    };
    if effort.is_none() && schema.is_none() {
        return Ok(());
    }
    writer.key("output_config").open(b'{');
    if let Some(effort) = effort {
        writer.member("effort", effort);
    }
    if let Some(schema) = schema {
        writer.key("format").open(b'{').member("type", "json_schema").raw_member("schema", schema.raw).close(b'}');
    }
    writer.close(b'}');
    Ok(())
}

/// The schema that the answer must have; none for plain text.
fn read_format(format: Node<'_>) -> Carried<Option<Node<'_>>> {
    let mut format = Fields::read(format, "response_format")?;
    let kind = format.required_text("type")?;
    if kind.is("text") {
        format.end()?;
        return Ok(None);
    }
    if !kind.is("json_schema") {
        return Err(Untranslatable::unknown(format.at("type")));
    }
    let path = format.at("json_schema");
    let described = format.object("json_schema")?.ok_or_else(|| Untranslatable::new(path.as_str(), "is missing."))?;
    format.end()?;
    let mut described = Fields::read(described, path)?;
    for label in ["name", "description", "strict"] {
        // Labels; and the schema binds there whether strict was asked for or not.
        described.take(label);
    }
    let schema =
        described.object("schema")?.ok_or_else(|| Untranslatable::new(described.at("schema"), "is missing."))?;
    described.end()?;
    Ok(Some(schema))
}

fn end_user(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let user = fields.text("user")?;
    let identifier = fields.text("safety_identifier")?;
    // Both name the end user; the newer one is meant where both are given, as for quotas.
    if let Some(user) = identifier.or(user) {
        writer.key("metadata").open(b'{').member("user_id", &user.decode()).close(b'}');
    }
    Ok(())
}

fn service_tier(fields: &mut Fields<'_>, writer: &mut Writer<'_>) -> Carried<()> {
    let Some(tier) = fields.text("service_tier")? else { return Ok(()) };
    match tier.decode().as_ref() {
        "auto" => writer.member("service_tier", "auto"),
        "default" => writer.member("service_tier", "standard_only"),
        _ => return Err(Untranslatable::unknown(fields.at("service_tier"))),
    };
    Ok(())
}

/// Members without a counterpart that may say their default, and advice about caches.
fn defaults(fields: &mut Fields<'_>, left_out: &mut Vec<String>) -> Carried<()> {
    for name in ["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"] {
        fields.leave(name, left_out);
    }
    for (name, default) in [("frequency_penalty", "0"), ("presence_penalty", "0"), ("n", "1"), ("top_logprobs", "0")] {
        fields.only_number(name, default)?;
    }
    for name in ["store", "logprobs"] {
        fields.only_default(name, |node| node.kind == Kind::False)?;
    }
    for name in ["logit_bias", "metadata", "functions"] {
        fields.only_default(name, |node| node.is_empty())?;
    }
    fields.only_default("modalities", |node| {
        node.raw.iter().filter(|byte| !byte.is_ascii_whitespace()).eq(br#"["text"]"#)
    })?;
    fields.only_default("verbosity", |node| node.text().is_some_and(|text| text.is("medium")))
}
