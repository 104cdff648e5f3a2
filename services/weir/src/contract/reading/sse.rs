//! The event stream format, as browsers and SDKs read it.

/// An event that carries data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub name: Option<String>,
    pub data: String,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub events: Vec<Event>,
    pub comments: usize,
    pub violations: Vec<String>,
}

pub(super) fn parse(bytes: &[u8]) -> Stream {
    let mut stream = Stream::default();
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(error) => {
            // A character cut off at the very end is a broken stream, not a wrong one.
            if error.error_len().is_some() {
                stream.violations.push("the stream is not UTF-8".to_owned());
            }
            String::from_utf8_lossy(bytes).into_owned()
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n");
    let (mut name, mut data, mut has_id, mut fields) = (None, Vec::new(), false, 0);
    for line in text.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { break };
        if line.is_empty() {
            if !data.is_empty() {
                stream.events.push(Event { name: name.take(), data: std::mem::take(&mut data).join("\n") });
            } else if has_id {
                // Decoders of older SDKs make an event of it, and its empty data is no JSON (O04).
                stream.violations.push("a blank line without data after an `id:`".to_owned());
            }
            (name, fields) = (None, 0);
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {
                stream.comments += 1;
                if fields > 0 {
                    stream.violations.push("a comment between the lines of an event".to_owned());
                }
                continue;
            }
            "data" => data.push(value),
            "event" => name = Some(value.to_owned()),
            "id" => has_id = true,
            _ => {}
        }
        fields += 1;
    }
    stream
}
