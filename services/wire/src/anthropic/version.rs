//! The API version that a request speaks: the header `anthropic-version`, which the API demands.

use std::fmt;

use thiserror::Error;

use weir_domain::registry;

/// A version that Weir knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnthropicVersion {
    V2023_06_01,
    /// Without `temperature`, `top_p` and `top_k`, which are refused even at their default values.
    V2026_10_21,
}

/// Why a request's version is not served; always the client's to fix, a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnknownVersion {
    #[error("The header `anthropic-version` is missing: send 2023-06-01 or 2026-10-21.")]
    Missing,
    #[error("The header `anthropic-version` names no version that is served here: send 2023-06-01 or 2026-10-21.")]
    Unknown,
}

impl AnthropicVersion {
    /// The name of the header.
    pub const HEADER: &str = "anthropic-version";

    /// Reads the header's value.
    ///
    /// # Errors
    /// It is missing, or a version whose rules Weir does not know; a request of such a version could mean anything.
    pub fn of_header(value: Option<&str>) -> Result<Self, UnknownVersion> {
        match value.map(str::trim) {
            Some("2023-06-01") => Ok(Self::V2023_06_01),
            Some("2026-10-21") => Ok(Self::V2026_10_21),
            Some(_) => Err(UnknownVersion::Unknown),
            None => Err(UnknownVersion::Missing),
        }
    }

    /// The header's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V2023_06_01 => "2023-06-01",
            Self::V2026_10_21 => "2026-10-21",
        }
    }

    /// Whether requests may say how tokens are sampled.
    #[must_use]
    pub const fn has_sampling(self) -> bool {
        match self {
            Self::V2023_06_01 => true,
            Self::V2026_10_21 => false,
        }
    }
}

/// As a catalog names it.
impl From<registry::AnthropicVersion> for AnthropicVersion {
    fn from(version: registry::AnthropicVersion) -> Self {
        match version {
            registry::AnthropicVersion::V2023_06_01 => Self::V2023_06_01,
            registry::AnthropicVersion::V2026_10_21 => Self::V2026_10_21,
        }
    }
}

impl fmt::Display for AnthropicVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What of a client's query goes to a provider of the same dialect: official SDKs mark beta endpoints by `?beta=true`.
/// Nothing else does, because a query can carry keys (O41).
#[must_use]
pub fn upstream_query(query: Option<&str>) -> Option<&'static str> {
    let is_beta = query.unwrap_or_default().split('&').any(|pair| pair == "beta=true");
    is_beta.then_some("beta=true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_the_two_that_are_known() {
        use AnthropicVersion as Version;
        for (value, version) in [
            (Some("2023-06-01"), Ok(Version::V2023_06_01)),
            (Some(" 2026-10-21 "), Ok(Version::V2026_10_21)),
            (Some("2023-01-01"), Err(UnknownVersion::Unknown)),
            (Some(""), Err(UnknownVersion::Unknown)),
            (None, Err(UnknownVersion::Missing)),
        ] {
            assert_eq!(Version::of_header(value), version, "{value:?}");
        }
        assert_eq!(Version::V2026_10_21.to_string(), "2026-10-21");
    }

    #[test]
    fn o41_of_a_query_only_the_beta_mark_passes() {
        for (query, passed) in [
            (None, None),
            (Some(""), None),
            (Some("beta=true"), Some("beta=true")),
            (Some("key=VK1&beta=true&x=1"), Some("beta=true")),
            (Some("beta=false&xbeta=true"), None),
        ] {
            assert_eq!(upstream_query(query), passed, "{query:?}");
        }
    }
}
