//! How single values stand on the wire: money, times, ids, meters, labels, scopes.
//!
//! Money is a decimal of nine places in bytes and not a `long` of nano-dollars: finance reads the ledger with whatever
//! Avro reader it has, and every one of them shows a decimal as dollars, while a forgotten factor of 10⁹ is an expensive
//! mistake. Nineteen digits hold every `i64`, so nothing is ever rounded. Meters and labels are maps, because a column of
//! pairs is what warehouses take.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;
use weir_domain::ids::{ModelName, ReservationId};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Scope, Subject};
use weir_domain::reservation::Labels;
use weir_domain::usage::{Meter, Usage};

use crate::datum::{DatumError, nanos_of};
use crate::names::Names;

/// An Avro fixed of `N` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Serialize for Fixed<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = serializer.serialize_tuple(N)?;
        for byte in &self.0 {
            bytes.serialize_element(byte)?;
        }
        bytes.end()
    }
}

impl<'de, const N: usize> Deserialize<'de> for Fixed<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes<const N: usize>;
        impl<const N: usize> Visitor<'_> for Bytes<N> {
            type Value = Fixed<N>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{N} bytes")
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Fixed<N>, E> {
                bytes.try_into().map(Fixed).map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// Microseconds on the wire, milliseconds in the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Millis(pub(crate) i64);

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let micros = self.0.checked_mul(1000).ok_or_else(|| serde::ser::Error::custom(DatumError::TimeOutOfRange))?;
        serializer.serialize_i64(micros)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ms = i64::deserialize(deserializer)?.div_euclid(1000);
        // Within the last millisecond of the range: it could not be written again.
        if ms.checked_mul(1000).is_none() {
            return Err(serde::de::Error::custom(DatumError::TimeOutOfRange));
        }
        Ok(Self(ms))
    }
}

/// Money as a decimal of nine places: two's complement, most significant byte first, without needless bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dollars(pub(crate) NanoUsd);

impl Serialize for Dollars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = self.0.nanos();
        let bits = 65 - (nanos ^ (nanos >> 63)).leading_zeros();
        let needed = bits.div_ceil(8) as usize;
        let wide = nanos.to_be_bytes();
        serializer.serialize_bytes(&wide[wide.len() - needed..])
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Decimal;
        impl Visitor<'_> for Decimal {
            type Value = Dollars;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a decimal")
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Dollars, E> {
                nanos_of(bytes).map(NanoUsd::from_nanos).map(Dollars).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Decimal)
    }
}

/// A UUID as text, in the flat records that people query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UuidText(pub(crate) Uuid);

impl Serialize for UuidText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl<'de> Deserialize<'de> for UuidText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        Uuid::parse_str(text).map(Self).map_err(de::Error::custom)
    }
}

impl From<ReservationId> for UuidText {
    fn from(id: ReservationId) -> Self {
        Self(*id.uuid())
    }
}

impl From<UuidText> for ReservationId {
    fn from(text: UuidText) -> Self {
        Self::new(text.0)
    }
}

/// A module for `#[serde(with = …)]`: a value of the rules, plain or optional, that stands on the wire as another type.
macro_rules! carried {
    (@ $module:ident: $value:ty, $wire:ty, $to:expr, $from:expr) => {
        pub(crate) mod $module {
            use super::*;
            pub(crate) fn serialize<S: Serializer>(value: &$value, serializer: S) -> Result<S::Ok, S::Error> {
                $to(*value).serialize(serializer)
            }
            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$value, D::Error> {
                <$wire>::deserialize(deserializer).map($from)
            }
        }
    };
    ($module:ident: Option<$value:ty>, $wire:ty, $to:expr, $from:expr) => {
        carried!(@ $module: Option<$value>, Option<$wire>,
            |value: Option<$value>| value.map($to), |wire: Option<$wire>| wire.map($from));
    };
    ($module:ident: $value:ty, $wire:ty, $to:expr, $from:expr) => {
        carried!(@ $module: $value, $wire, $to, $from);
    };
}

carried!(millis: i64, Millis, Millis, |wire: Millis| wire.0);
carried!(dollars: NanoUsd, Dollars, Dollars, |wire: Dollars| wire.0);
carried!(uuid_text: Uuid, UuidText, UuidText, |wire: UuidText| wire.0);
carried!(hash: [u8; 32], Fixed<32>, Fixed::<32>, |wire: Fixed<32>| wire.0);
carried!(reservation: ReservationId, UuidText, UuidText::from, ReservationId::from);
carried!(optional_millis: Option<i64>, Millis, Millis, |wire: Millis| wire.0);
carried!(optional_dollars: Option<NanoUsd>, Dollars, Dollars, |wire: Dollars| wire.0);
carried!(optional_reservation: Option<ReservationId>, UuidText, UuidText::from, ReservationId::from);

/// Requests, tokens and money as one nested record.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct WireAmounts {
    requests: i64,
    tokens: i64,
    usd: Dollars,
}

impl From<Amounts> for WireAmounts {
    fn from(Amounts { requests, tokens, usd }: Amounts) -> Self {
        Self { requests, tokens, usd: Dollars(usd) }
    }
}

impl From<WireAmounts> for Amounts {
    fn from(WireAmounts { requests, tokens, usd }: WireAmounts) -> Self {
        Self { requests, tokens, usd: usd.0 }
    }
}

/// A usage as a map from meter codes.
#[derive(Debug, Clone)]
pub(crate) struct Meters<'a>(pub(crate) Cow<'a, Usage>);

impl Serialize for Meters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        meters::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Meters<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        meters::deserialize(deserializer).map(|usage| Self(Cow::Owned(usage)))
    }
}

pub(crate) mod meters {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(usage.readings().iter().map(|reading| (reading.meter.code(), reading.quantity)))
    }

    /// Sums up, refuses unknown meters and negative quantities: see [`Usage::new`].
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Usage, D::Error> {
        let readings: Vec<(Meter, i64)> = pairs(deserializer)?;
        Usage::new(readings).map_err(de::Error::custom)
    }
}

pub(crate) mod labels {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(labels.iter().map(|(key, value)| (key, value)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        pairs(deserializer).map(|pairs: Vec<(String, String)>| pairs.into())
    }
}

/// The entries of a map, in order.
fn pairs<'de, D, K, V>(deserializer: D) -> Result<Vec<(K, V)>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de>,
    V: Deserialize<'de>,
{
    struct Pairs<K, V>(std::marker::PhantomData<(K, V)>);
    impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Pairs<K, V> {
        type Value = Vec<(K, V)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }
        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Vec<(K, V)>, A::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }
    }
    deserializer.deserialize_map(Pairs(std::marker::PhantomData))
}

/// Whose usage a scope counts, without the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SubjectKind {
    Tenant,
    Team,
    Key,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireScope<'a> {
    subject: SubjectKind,
    #[serde(borrow)]
    id: Option<&'a str>,
    #[serde(borrow)]
    model: Option<&'a str>,
}

/// A scope whose texts are lent: from a frame, or from a [`Scope`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScopeText<'a> {
    subject: SubjectText<'a>,
    pub(crate) model: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubjectText<'a> {
    Tenant,
    Team(&'a str),
    Key(&'a str),
}

impl ScopeText<'_> {
    pub(crate) const fn subject_id(&self) -> Option<&str> {
        match self.subject {
            SubjectText::Tenant => None,
            SubjectText::Team(id) | SubjectText::Key(id) => Some(id),
        }
    }

    /// The scope, its texts out of `names`.
    pub(crate) fn scope(&self, names: &mut Names) -> Scope {
        let subject = match self.subject {
            SubjectText::Tenant => Subject::Tenant,
            SubjectText::Team(id) => Subject::Team(names.text(id)),
            SubjectText::Key(id) => Subject::Key(names.text(id)),
        };
        Scope { subject, model: self.model.map(|model| names.text(model)) }
    }
}

impl<'a> From<&'a Scope> for ScopeText<'a> {
    fn from(scope: &'a Scope) -> Self {
        let subject = match &scope.subject {
            Subject::Tenant => SubjectText::Tenant,
            Subject::Team(team) => SubjectText::Team(team.as_str()),
            Subject::Key(key) => SubjectText::Key(key.as_str()),
        };
        Self { subject, model: scope.model.as_ref().map(ModelName::as_str) }
    }
}

impl Serialize for ScopeText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let subject = match self.subject {
            SubjectText::Tenant => SubjectKind::Tenant,
            SubjectText::Team(_) => SubjectKind::Team,
            SubjectText::Key(_) => SubjectKind::Key,
        };
        WireScope { subject, id: self.subject_id(), model: self.model }.serialize(serializer)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ScopeText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WireScope { subject, id, model } = WireScope::deserialize(deserializer)?;
        let subject = match (subject, id) {
            (SubjectKind::Tenant, None) => SubjectText::Tenant,
            (SubjectKind::Team, Some(id)) => SubjectText::Team(id),
            (SubjectKind::Key, Some(id)) => SubjectText::Key(id),
            (SubjectKind::Tenant, Some(_)) => return Err(de::Error::custom("a tenant's scope names an id")),
            (SubjectKind::Team | SubjectKind::Key, None) => {
                return Err(de::Error::custom("the scope of a team or key names no id"));
            }
        };
        Ok(Self { subject, model })
    }
}

/// A list of scopes: the reservation's own when it is written, lent by the frame when it is read.
#[derive(Debug)]
pub(crate) enum ScopeTexts<'a> {
    Of(&'a [Scope]),
    Read(Vec<ScopeText<'a>>),
}

impl Serialize for ScopeTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Of(scopes) => serializer.collect_seq(scopes.iter().map(ScopeText::from)),
            Self::Read(texts) => serializer.collect_seq(texts),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ScopeTexts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::Read)
    }
}

pub(crate) mod scopes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(scopes: &Arc<[Scope]>, serializer: S) -> Result<S::Ok, S::Error> {
        ScopeTexts::Of(scopes).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[Scope]>, D::Error> {
        let texts = Vec::<ScopeText<'de>>::deserialize(deserializer)?;
        Ok(Names::default().scopes(&texts))
    }
}
