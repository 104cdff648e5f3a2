//! Where calls go: an address parsed once, and the origin whose connections serve it.

use std::collections::HashMap;
use std::sync::Arc;

use http::Uri;
use parking_lot::RwLock;
use thiserror::Error;

use crate::pool::Origin;

/// One path at one origin.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) origin: Arc<Origin>,
    /// What stands in the request line.
    pub(crate) path: Box<str>,
}

/// An address that no request can be sent to.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no address: it must be http:// or https://, a host, and a path without a fragment or user name")]
pub struct BadAddress(String);

/// How many addresses are kept parsed; at the bound all are dropped, because what is used is parsed again at once. Far
/// above the providers of any catalog, and their connections close when nobody holds them.
const MOST_ENDPOINTS: usize = 4096;

/// The addresses in use, by base URL and path.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    kept: RwLock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_base: HashMap<Box<str>, HashMap<&'static str, Arc<Endpoint>>>,
    origins: HashMap<Box<str>, Arc<Origin>>,
}

impl Endpoints {
    pub(crate) fn of(&self, base_url: &str, path: &'static str) -> Result<Arc<Endpoint>, BadAddress> {
        if let Some(known) = self.kept.read().by_base.get(base_url).and_then(|paths| paths.get(path)) {
            return Ok(Arc::clone(known));
        }
        let uri = parse(base_url, path)?;
        let mut kept = self.kept.write();
        if kept.by_base.len() >= MOST_ENDPOINTS {
            *kept = Kept::default();
        }
        let origin = kept.origin(&uri);
        let path_and_query = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let endpoint = Arc::new(Endpoint { origin, path: path_and_query.into() });
        kept.by_base.entry(base_url.into()).or_default().insert(path, Arc::clone(&endpoint));
        Ok(endpoint)
    }

    pub(crate) fn origins(&self) -> Vec<Arc<Origin>> {
        self.kept.read().origins.values().cloned().collect()
    }
}

impl Kept {
    fn origin(&mut self, uri: &Uri) -> Arc<Origin> {
        let name = format!("{}://{}", uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |a| a.as_str()));
        Arc::clone(self.origins.entry(name.into_boxed_str()).or_insert_with(|| Arc::new(Origin::new(uri))))
    }
}

fn parse(base_url: &str, path: &str) -> Result<Uri, BadAddress> {
    let bad = || BadAddress(format!("{base_url}{path}"));
    let uri: Uri = format!("{base_url}{path}").parse().map_err(|_| bad())?;
    let has_known_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_host_alone = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if has_known_scheme && is_host_alone { Ok(uri) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed_once_and_paths_of_one_origin_share_its_connections() {
        let endpoints = Endpoints::default();
        let chat = endpoints.of("https://api.example.com/v1", "/chat/completions").unwrap();
        let again = endpoints.of("https://api.example.com/v1", "/chat/completions").unwrap();
        let other = endpoints.of("https://api.example.com/v2", "/embeddings").unwrap();
        assert!(Arc::ptr_eq(&chat, &again));
        assert!(Arc::ptr_eq(&chat.origin, &other.origin));
        assert_eq!((&*chat.path, &*other.path), ("/v1/chat/completions", "/v2/embeddings"));
        assert!(!Arc::ptr_eq(&chat.origin, &endpoints.of("http://api.example.com", "/embeddings").unwrap().origin));
    }

    #[test]
    fn an_address_without_scheme_or_host_or_with_a_user_is_refused() {
        let endpoints = Endpoints::default();
        for base in ["api.example.com", "ftp://a", "/v1", "", "http://", "http://user:secret@a", "http://a b"] {
            assert!(endpoints.of(base, "/x").is_err(), "{base}");
        }
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let endpoints = Endpoints::default();
        for number in 0..MOST_ENDPOINTS + 2 {
            endpoints.of(&format!("http://host-{number}"), "/x").unwrap();
        }
        assert!(endpoints.kept.read().by_base.len() <= MOST_ENDPOINTS);
        assert!(endpoints.origins().len() <= MOST_ENDPOINTS);
    }
}
