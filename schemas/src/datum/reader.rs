//! Avro binary to serde, along the writer's schema.
//!
//! Nothing is allocated before the bytes for it were seen: texts are lent from the frame, and sequences promise no
//! length, so that a length that lies costs an error and no memory.

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::DatumError;
use super::shape::{RecordShape, Shape};

/// Reads one `T` off the front of `bytes` and leaves `bytes` at what follows it.
pub(crate) fn read<'de, T: de::Deserialize<'de>>(shape: &Shape, bytes: &mut &'de [u8]) -> Result<T, DatumError> {
    let mut reader = Reader { rest: bytes };
    let value = T::deserialize(Datum { shape, reader: &mut reader })?;
    *bytes = reader.rest;
    Ok(value)
}

/// The bytes that are left.
pub(crate) struct Reader<'de> {
    pub(crate) rest: &'de [u8],
}

impl<'de> Reader<'de> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'de [u8], DatumError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(DatumError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, DatumError> {
        let (first, rest) = self.rest.split_first().ok_or(DatumError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn long(&mut self) -> Result<i64, DatumError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let beyond_64_bits = shift == 63 && bits > 1;
            if beyond_64_bits {
                return Err(DatumError::LongNumber);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        Err(DatumError::LongNumber)
    }

    pub(crate) fn int(&mut self) -> Result<i32, DatumError> {
        i32::try_from(self.long()?).map_err(|_| DatumError::LongNumber)
    }

    pub(crate) fn boolean(&mut self) -> Result<bool, DatumError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DatumError::NotBoolean(other)),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'de [u8], DatumError> {
        let length = usize::try_from(self.long()?).map_err(|_| DatumError::NegativeLength)?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Result<&'de str, DatumError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DatumError::NotUtf8)
    }

    /// A decimal: two's complement, most significant byte first, as short as the writer made it.
    pub(crate) fn nanos(&mut self) -> Result<i64, DatumError> {
        nanos_of(self.bytes()?)
    }

    pub(crate) fn branch<'r>(&mut self, branches: &'r [Shape]) -> Result<&'r Shape, DatumError> {
        let index = self.long()?;
        let branch = usize::try_from(index).ok().and_then(|at| branches.get(at));
        branch.ok_or(DatumError::NoSuchBranch(index))
    }

    pub(crate) fn symbol<'r>(&mut self, symbols: &'r [String]) -> Result<&'r str, DatumError> {
        let index = self.long()?;
        let symbol = usize::try_from(index).ok().and_then(|at| symbols.get(at));
        symbol.map(String::as_str).ok_or(DatumError::NoSuchSymbol(index))
    }

    /// The count of the next block of an array or map; 0 ends it. A negative count comes with the block's size, for
    /// those who want to skip it.
    pub(crate) fn block(&mut self) -> Result<u64, DatumError> {
        let count = self.long()?;
        if count < 0 {
            self.long()?;
        }
        Ok(count.unsigned_abs())
    }
}

pub(crate) fn nanos_of(bytes: &[u8]) -> Result<i64, DatumError> {
    const WIDTH: usize = size_of::<i64>();
    let sign = if bytes.first().is_some_and(|first| first & 0x80 != 0) { 0xff } else { 0 };
    let (padding, kept) = bytes.split_at(bytes.len().saturating_sub(WIDTH));
    let mut wide = [sign; WIDTH];
    wide[WIDTH - kept.len()..].copy_from_slice(kept);
    let is_padding_only =
        padding.iter().all(|byte| *byte == sign) && (padding.is_empty() || wide[0] & 0x80 == sign & 0x80);
    if is_padding_only { Ok(i64::from_be_bytes(wide)) } else { Err(DatumError::WideDecimal) }
}

struct Datum<'r, 'de> {
    shape: &'r Shape,
    reader: &'r mut Reader<'de>,
}

impl<'de> de::Deserializer<'de> for Datum<'_, 'de> {
    type Error = DatumError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DatumError> {
        let Self { shape, reader } = self;
        match shape {
            Shape::Null => visitor.visit_unit(),
            Shape::Boolean => visitor.visit_bool(reader.boolean()?),
            Shape::Int => visitor.visit_i32(reader.int()?),
            Shape::Long | Shape::Micros => visitor.visit_i64(reader.long()?),
            Shape::Bytes | Shape::Nanos => visitor.visit_borrowed_bytes(reader.bytes()?),
            Shape::Text => visitor.visit_borrowed_str(reader.text()?),
            Shape::Fixed { bytes, .. } => visitor.visit_borrowed_bytes(reader.take(*bytes)?),
            Shape::Enum(symbols) => visitor.visit_str(reader.symbol(symbols)?),
            Shape::Array(item) => visitor.visit_seq(Items { shape: item, reader, left: 0, ended: false }),
            Shape::Map(item) => visitor.visit_map(Items { shape: item, reader, left: 0, ended: false }),
            Shape::Union(branches) => {
                let shape = reader.branch(branches)?;
                Self { shape, reader }.deserialize_any(visitor)
            }
            Shape::Record(record) => visitor.visit_map(Fields { record, at: 0, reader }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DatumError> {
        let Shape::Union(branches) = self.shape else { return visitor.visit_some(self) };
        match self.reader.branch(branches)? {
            Shape::Null => visitor.visit_none(),
            shape => visitor.visit_some(Datum { shape, reader: self.reader }),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DatumError> {
        match self.shape {
            Shape::Enum(symbols) => visitor.visit_enum(self.reader.symbol(symbols)?.into_deserializer()),
            _ => Err(DatumError::Unsupported("enum outside of an enum")),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DatumError> {
        visitor.visit_newtype_struct(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// The fields of a record, by the names that the writer's schema gives them.
struct Fields<'r, 'de> {
    record: &'r RecordShape,
    at: usize,
    reader: &'r mut Reader<'de>,
}

impl<'de> de::MapAccess<'de> for Fields<'_, 'de> {
    type Error = DatumError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DatumError> {
        match self.record.fields.get(self.at) {
            Some((name, _)) => seed.deserialize(name.as_str().into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DatumError> {
        let (_, shape) = self.record.fields.get(self.at).ok_or(DatumError::Truncated)?;
        self.at += 1;
        seed.deserialize(Datum { shape, reader: self.reader })
    }
}

/// The items of an array or map, block by block.
struct Items<'r, 'de> {
    shape: &'r Shape,
    reader: &'r mut Reader<'de>,
    /// Items left of the block.
    left: u64,
    ended: bool,
}

impl Items<'_, '_> {
    fn has_next(&mut self) -> Result<bool, DatumError> {
        if self.left == 0 && !self.ended {
            self.left = self.reader.block()?;
            self.ended = self.left == 0;
        }
        Ok(!self.ended)
    }
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = DatumError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DatumError> {
        if !self.has_next()? {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(Datum { shape: self.shape, reader: self.reader }).map(Some)
    }
}

impl<'de> de::MapAccess<'de> for Items<'_, 'de> {
    type Error = DatumError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DatumError> {
        if !self.has_next()? {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(Datum { shape: &Shape::Text, reader: self.reader }).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DatumError> {
        seed.deserialize(Datum { shape: self.shape, reader: self.reader })
    }
}
