//! Identifiers. All are opaque: a name that a person chose lives in the control store and can be deleted there, while
//! an id that is on the log stays for ever.

mod map;

pub use map::{OwnBits, OwnMap, ReservationMap};

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            #[must_use]
            pub fn new(text: &str) -> Self {
                Self(Arc::from(text))
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        /// Shares the text.
        impl From<Arc<str>> for $name {
            fn from(text: Arc<str>) -> Self {
                Self(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A customer of the platform; owner of keys, limits and money.
    TenantId
);
text_id!(
    /// A group of keys within a tenant.
    TeamId
);
text_id!(
    /// A virtual key, by its id; never the key itself.
    KeyId
);
text_id!(
    /// A logical model: the alias that clients ask for.
    ModelName
);
text_id!(
    /// A concrete model at a provider, in a region.
    DeploymentId
);
text_id!(
    /// A provider account: base URL, dialect, credential reference.
    ProviderId
);
text_id!(
    /// The content hash of the prices in force; locked at admission (I10).
    PriceVersion
);
text_id!(
    /// A region that owns its reservations.
    Region
);

/// A reservation: one per client request (I3). A UUIDv7, made by `weir_runtime::entropy`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReservationId(Uuid);

/// Of the half that is random: one word, whatever hashes it.
impl Hash for ReservationId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.as_u64_pair().1);
    }
}

impl ReservationId {
    #[must_use]
    pub const fn new(uuid: Uuid) -> Self {
        Self(uuid)
    }

    #[must_use]
    pub const fn uuid(&self) -> &Uuid {
        &self.0
    }

    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl FromStr for ReservationId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
