//! Texts that come again and again: one allocation for all events that carry the same.
//!
//! An event names its tenant, key, model, provider and a dozen more, of which a log has some hundred in all. A reader
//! that folds millions of events makes each of them once and shares it: that is a third of its time and, for what it
//! keeps, most of its memory. What was seen is held in a table with one place per hash, so it is bounded, and a text
//! that loses its place is only made again.

use std::sync::Arc;

use weir_domain::attempt::Target;
use weir_domain::quota::Scope;
use weir_domain::reservation::Labels;

use crate::parts::ScopeText;

/// Places for texts: room for the busy part of a large catalog, 64 KiB.
const TEXTS: usize = 4096;
/// Places for lists of scopes and for targets: one is busy per pair of key and model, or per deployment.
const LISTS: usize = 1024;

/// What a reader has seen.
#[derive(Debug, Clone, Default)]
pub struct Names {
    texts: Vec<Option<Arc<str>>>,
    scopes: Vec<Option<Arc<[Scope]>>>,
    targets: Vec<Option<Arc<Target>>>,
    no_labels: Option<Labels>,
}

/// A target as it stands in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetText<'a> {
    pub deployment: &'a str,
    pub provider: &'a str,
    pub upstream_model: &'a str,
    pub provider_region: &'a str,
    pub price: &'a str,
}

impl Names {
    /// Room for what a long reading sees. [`Names::default`] has none and shares nothing, for a single event.
    #[must_use]
    pub fn with_room() -> Self {
        Self { texts: vec![None; TEXTS], scopes: vec![None; LISTS], targets: vec![None; LISTS], no_labels: None }
    }

    pub(crate) fn text<T: From<Arc<str>>>(&mut self, text: &str) -> T {
        let Some(place) = place(&mut self.texts, spread(0, text)) else { return T::from(Arc::from(text)) };
        match place {
            Some(known) if **known == *text => Arc::clone(known).into(),
            Some(_) | None => Arc::clone(place.insert(Arc::from(text))).into(),
        }
    }

    pub(crate) fn scopes(&mut self, texts: &[ScopeText<'_>]) -> Arc<[Scope]> {
        let hash = texts.iter().fold(0, |hash, scope| {
            let [subject, model] = [scope.subject_id(), scope.model].map(Option::unwrap_or_default);
            spread(spread(hash, subject), model)
        });
        let is_known = |known: &Arc<[Scope]>| known.iter().map(ScopeText::from).eq(texts.iter().copied());
        let known = place(&mut self.scopes, hash).and_then(|place| place.as_ref()).filter(|known| is_known(known));
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let made: Arc<[Scope]> = texts.iter().map(|scope| scope.scope(self)).collect();
        if let Some(place) = place(&mut self.scopes, hash) {
            *place = Some(Arc::clone(&made));
        }
        made
    }

    pub(crate) fn target(&mut self, text: TargetText<'_>) -> Arc<Target> {
        let hash = spread(spread(0, text.deployment), text.price);
        let known = place(&mut self.targets, hash).and_then(|place| place.as_ref());
        if let Some(known) = known.filter(|known| TargetText::from(&***known) == text) {
            return Arc::clone(known);
        }
        let made = Arc::new(Target {
            deployment: self.text(text.deployment),
            provider: self.text(text.provider),
            upstream_model: text.upstream_model.to_owned(),
            provider_region: text.provider_region.to_owned(),
            price: text.price.to_owned(),
        });
        if let Some(place) = place(&mut self.targets, hash) {
            *place = Some(Arc::clone(&made));
        }
        made
    }

    /// Most requests have none.
    pub(crate) fn labels(&mut self, labels: &Labels) -> Labels {
        if labels.is_empty() {
            Arc::clone(self.no_labels.get_or_insert_with(|| Arc::clone(labels)))
        } else {
            Arc::clone(labels)
        }
    }
}

impl<'a> From<&'a Target> for TargetText<'a> {
    fn from(target: &'a Target) -> Self {
        let Target { deployment, provider, upstream_model, provider_region, price } = target;
        Self { deployment: deployment.as_str(), provider: provider.as_str(), upstream_model, provider_region, price }
    }
}

fn place<T>(places: &mut [Option<T>], hash: u64) -> Option<&mut Option<T>> {
    let count = u64::try_from(places.len()).ok().filter(|count| *count > 0)?;
    places.get_mut(usize::try_from((hash >> 32) % count).ok()?)
}

/// Quick rather than hard to guess: texts that share a place are only made more often.
fn spread(hash: u64, text: &str) -> u64 {
    let mut hash = hash.wrapping_add(text.len() as u64);
    for part in text.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_domain::ids::{KeyId, ModelName, TeamId, TenantId};

    #[test]
    fn what_comes_again_is_shared_and_what_differs_is_not() {
        let mut names = Names::with_room();
        let [one, same]: [Arc<str>; 2] = [names.text("acme"), names.text("acme")];
        assert!(Arc::ptr_eq(&one, &same));
        assert_eq!(names.text::<TenantId>("other").as_str(), "other");

        let list = |model: &str| Scope::of_request(Some(&TeamId::new("t")), &KeyId::new("k"), &ModelName::new(model));
        let (fast, slow) = (list("fast"), list("slow"));
        let texts = |scopes: &Arc<[Scope]>| -> Arc<[Scope]> {
            Names::with_room().scopes(&scopes.iter().map(ScopeText::from).collect::<Vec<_>>())
        };
        assert_eq!((texts(&fast), texts(&slow)), (Arc::clone(&fast), slow));
        let fast_texts: Vec<_> = fast.iter().map(ScopeText::from).collect();
        assert!(Arc::ptr_eq(&names.scopes(&fast_texts), &names.scopes(&fast_texts)));
    }

    #[test]
    fn any_number_of_texts_takes_bounded_room_and_all_are_right() {
        let (mut names, mut none) = (Names::with_room(), Names::default());
        for n in 0..100_000 {
            let text = format!("vk-{n}");
            assert_eq!((&*names.text::<Arc<str>>(&text), &*none.text::<Arc<str>>(&text)), (&*text, &*text));
        }
        assert_eq!((names.texts.len(), none.texts.len()), (TEXTS, 0));
    }
}
