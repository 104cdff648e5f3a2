//! The exact count of a request's text, made only where the bound by bytes would be refused (I7: it sizes a hold).
//!
//! Counting takes milliseconds of a processor, so it runs on a thread of its own, for few requests at once: when many
//! clients are at their limits, the bound by bytes is the last word for the rest.

use std::sync::Arc;

use tiktoken_rs::{CoreBPE, cl100k_base_singleton, o200k_base_singleton};
use tokio::sync::Semaphore;

use weir_domain::registry::Tokenizer;
use weir_wire::ClientRequest;
use weir_wire::bound::InputSize;

use crate::estimate::Estimate;
use crate::lifecycle::Prepared;
use crate::server::Inner;

/// The largest text that is counted: a context of 128,000 tokens in English. The library's patterns give up, by a panic,
/// after a million steps back, which a single run of characters below this cannot make.
const MOST_TEXT_BYTES: u64 = 512 * 1024;

/// How many texts are counted at once: below the processors of any machine, so that requests go on beside it.
const MOST_AT_ONCE: usize = 2;

/// The right to count.
#[derive(Debug, Clone)]
pub(crate) struct CountingPermits(Arc<Semaphore>);

impl Default for CountingPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_AT_ONCE)))
    }
}

/// The estimate with counted text, never above `estimate`; `None` when a permitted deployment names no tokenizer, the
/// request is none of chat, its text is too large, or too many are being counted.
pub(crate) async fn recount(gateway: &Inner, prepared: &Prepared, estimate: &Estimate) -> Option<Estimate> {
    let tokenizers = estimate.tokenizers()?;
    let is_chat = matches!(prepared.request, ClientRequest::Chat(_));
    if !is_chat || prepared.request.facts().size.text_bytes > MOST_TEXT_BYTES {
        return None;
    }
    let permit = Arc::clone(&gateway.counting.0).try_acquire_owned().ok()?;
    let request = prepared.request.clone();
    let counting = gateway.tasks.spawn_blocking("recount", move || {
        let _until_counted = permit;
        Count::of(&request, &tokenizers)
    });
    let count = counting.await.ok()?;
    Some(estimate.recounted(&count))
}

/// A request's text by each tokenizer, and what is still bounded by bytes.
#[derive(Debug)]
pub(crate) struct Count {
    tokens: Vec<(Tokenizer, i64)>,
    /// The request without the counted text.
    pub rest: InputSize,
}

impl Count {
    fn of(request: &ClientRequest, tokenizers: &[Tokenizer]) -> Self {
        let texts = request.message_texts();
        let size = request.facts().size;
        let count = |tokenizer: &Tokenizer| {
            let vocabulary = vocabulary(*tokenizer);
            texts.texts.iter().map(|text| vocabulary.encode_ordinary(text).len()).sum::<usize>()
        };
        Self {
            tokens: tokenizers.iter().map(|t| (*t, i64::try_from(count(t)).unwrap_or(i64::MAX))).collect(),
            rest: InputSize { text_bytes: size.text_bytes.saturating_sub(texts.raw_bytes), ..size },
        }
    }

    pub(crate) fn tokens(&self, tokenizer: Tokenizer) -> Option<i64> {
        self.tokens.iter().find(|(of, _)| *of == tokenizer).map(|(_, tokens)| *tokens)
    }
}

/// Compiled in, and unpacked at its first use.
fn vocabulary(tokenizer: Tokenizer) -> &'static CoreBPE {
    match tokenizer {
        Tokenizer::O200k => o200k_base_singleton(),
        Tokenizer::Cl100k => cl100k_base_singleton(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use weir_wire::Dialect;
    use weir_wire::anthropic::AnthropicVersion;
    use weir_wire::request::Limits;

    use super::*;

    fn request(text: &str) -> ClientRequest {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        ClientRequest::parse(Dialect::OpenAiChat, Bytes::from(body), &Limits::default(), AnthropicVersion::V2023_06_01)
            .unwrap()
    }

    #[test]
    fn text_is_counted_by_each_vocabulary_and_the_rest_stays_bounded() {
        let request = request("お誕生日おめでとう");
        let count = Count::of(&request, &[Tokenizer::O200k, Tokenizer::Cl100k]);
        // As OpenAI's own examples of counting say.
        assert_eq!((count.tokens(Tokenizer::O200k), count.tokens(Tokenizer::Cl100k)), (Some(8), Some(9)));
        assert_eq!(count.rest.text_bytes, request.facts().size.text_bytes - "お誕生日おめでとう".len() as u64);
    }

    /// The library panics where its patterns step back too often, and is slow where a run is long.
    #[test]
    fn the_largest_run_of_one_kind_of_character_is_counted() {
        let most = usize::try_from(MOST_TEXT_BYTES).unwrap();
        for run in ["A", "a", " ", "7", "!", "世", "\\n", " A"] {
            let request = request(&run.repeat(most / run.len()));
            let tokens = Count::of(&request, &[Tokenizer::O200k]).tokens(Tokenizer::O200k);
            assert!(tokens.is_some_and(|tokens| (1..=MOST_TEXT_BYTES.cast_signed()).contains(&tokens)), "{run:?}");
        }
    }
}
