//! A usage report in the other side's form, from the disjoint meters that both are read into.
//!
//! What a client sees here is for its own books; the ledger has the meters themselves.

use weir_domain::usage::{Meter, Usage};

use crate::json::Writer;
use crate::usage::Extracted;

/// The `usage` of a chat answer: totals include what the cache read and wrote, and reasoning (O16, O17, O18).
pub(super) fn write_chat(usage: &Usage, writer: &mut Writer<'_>) {
    let (input, output) = (usage.input_tokens(), usage.output_tokens());
    writer.open(b'{');
    writer.key("prompt_tokens").number(input);
    writer.key("completion_tokens").number(output);
    writer.key("total_tokens").number(input.saturating_add(output));
    writer.key("prompt_tokens_details").open(b'{');
    writer.key("cached_tokens").number(usage.get(Meter::InCacheRead));
    writer.key("cache_write_tokens").number(written(usage)).close(b'}');
    writer.key("completion_tokens_details").open(b'{');
    writer.key("reasoning_tokens").number(usage.get(Meter::OutReasoning)).close(b'}');
    writer.close(b'}');
}

/// The `usage` of a message: `input_tokens` is what the cache neither read nor wrote (O17). This API has no way to say
/// "unknown", so an unknown usage is zeros with a mark beside them.
pub(super) fn write_message(extracted: Option<&Extracted>, writer: &mut Writer<'_>) {
    let known = extracted.and_then(|extracted| extracted.usage.as_ref());
    let none = Usage::default();
    let usage = known.unwrap_or(&none);
    let (read, written) = (usage.get(Meter::InCacheRead), written(usage));
    writer.open(b'{');
    writer.key("input_tokens").number(usage.input_tokens() - read - written);
    writer.key("cache_creation_input_tokens").number(written);
    writer.key("cache_read_input_tokens").number(read);
    writer.key("output_tokens").number(usage.output_tokens());
    writer.key("output_tokens_details").open(b'{');
    writer.key("thinking_tokens").number(usage.get(Meter::OutReasoning)).close(b'}');
    if known.is_none() {
        writer.raw_member("weir_usage_unknown", b"true");
    }
    writer.close(b'}');
}

fn written(usage: &Usage) -> i64 {
    usage.readings().iter().filter(|reading| reading.meter.is_cache_write()).map(|reading| reading.quantity).sum()
}
