//! Serde to Avro binary, without looking at a schema.
//!
//! Rests on four habits that the tests compare with the schemas: a struct declares its fields in the schema's order, an
//! enum its variants in the order of the symbols, an optional field is the union of null and its type in this order, and
//! single bytes occur only in a fixed.

use serde::ser::{self, Impossible, Serialize};

use super::DatumError;

/// Appends `value` to `out`. After an error `out` holds a part of it.
pub(crate) fn write<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), DatumError> {
    value.serialize(&mut Writer { out })
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl Writer<'_> {
    /// The zigzag code: small numbers of either sign take few bytes.
    #[inline]
    fn put_long(&mut self, number: i64) {
        let mut rest = (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned();
        while rest > 0x7f {
            self.out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        self.out.push(rest as u8);
    }

    fn put_length(&mut self, length: usize) -> Result<(), DatumError> {
        self.put_long(i64::try_from(length).map_err(|_| DatumError::LongNumber)?);
        Ok(())
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), DatumError> {
        self.put_length(bytes.len())?;
        self.out.extend_from_slice(bytes);
        Ok(())
    }
}

type Done = Result<(), DatumError>;
type Never = Impossible<(), DatumError>;

impl<'w, 'a> ser::Serializer for &'w mut Writer<'a> {
    type Ok = ();
    type Error = DatumError;
    type SerializeSeq = Blocks<'w, 'a>;
    type SerializeTuple = Plain<'w, 'a>;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Blocks<'w, 'a>;
    type SerializeStruct = Plain<'w, 'a>;
    type SerializeStructVariant = Never;

    fn serialize_bool(self, value: bool) -> Done {
        self.out.push(u8::from(value));
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Done {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Done {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Done {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Done {
        self.put_long(value);
        Ok(())
    }

    /// One byte of a fixed.
    fn serialize_u8(self, value: u8) -> Done {
        self.out.push(value);
        Ok(())
    }

    fn serialize_u16(self, value: u16) -> Done {
        self.serialize_i64(value.into())
    }

    /// An `int`, whose upper half other readers would take for negative numbers.
    fn serialize_u32(self, value: u32) -> Done {
        self.serialize_i32(i32::try_from(value).map_err(|_| DatumError::LongNumber)?)
    }

    fn serialize_u64(self, value: u64) -> Done {
        self.serialize_i64(i64::try_from(value).map_err(|_| DatumError::LongNumber)?)
    }

    fn serialize_f32(self, _: f32) -> Done {
        Err(DatumError::Unsupported("float"))
    }

    fn serialize_f64(self, _: f64) -> Done {
        Err(DatumError::Unsupported("double"))
    }

    fn serialize_char(self, _: char) -> Done {
        Err(DatumError::Unsupported("single character"))
    }

    fn serialize_str(self, value: &str) -> Done {
        self.put_bytes(value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Done {
        self.put_bytes(value)
    }

    fn serialize_none(self) -> Done {
        self.put_long(0);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        self.put_long(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Done {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Done {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Done {
        self.put_long(index.into());
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Done {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(self, _: &'static str, _: u32, _: &'static str, _: &T) -> Done {
        Err(DatumError::Unsupported("enum with content"))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Blocks<'w, 'a>, DatumError> {
        Blocks::open(self, length)
    }

    fn serialize_tuple(self, _: usize) -> Result<Plain<'w, 'a>, DatumError> {
        Ok(Plain { writer: self })
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Never, DatumError> {
        Err(DatumError::Unsupported("tuple struct"))
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Never, DatumError> {
        Err(DatumError::Unsupported("enum with content"))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Blocks<'w, 'a>, DatumError> {
        Blocks::open(self, length)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Plain<'w, 'a>, DatumError> {
        Ok(Plain { writer: self })
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Never, DatumError> {
        Err(DatumError::Unsupported("enum with content"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// An array or a map: one block with its count, then the block of none that ends it.
struct Blocks<'w, 'a> {
    writer: &'w mut Writer<'a>,
}

impl<'w, 'a> Blocks<'w, 'a> {
    fn open(writer: &'w mut Writer<'a>, length: Option<usize>) -> Result<Self, DatumError> {
        match length {
            Some(0) => {}
            Some(count) => writer.put_length(count)?,
            None => return Err(DatumError::Unsupported("sequence of unknown length")),
        }
        Ok(Self { writer })
    }

    fn close(self) -> Done {
        self.writer.put_long(0);
        Ok(())
    }
}

impl ser::SerializeSeq for Blocks<'_, '_> {
    type Ok = ();
    type Error = DatumError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Done {
        self.close()
    }
}

impl ser::SerializeMap for Blocks<'_, '_> {
    type Ok = ();
    type Error = DatumError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        key.serialize(&mut *self.writer)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Done {
        self.close()
    }
}

/// A record or a fixed: its parts, one after the other.
struct Plain<'w, 'a> {
    writer: &'w mut Writer<'a>,
}

impl ser::SerializeStruct for Plain<'_, '_> {
    type Ok = ();
    type Error = DatumError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Done {
        value.serialize(&mut *self.writer)
    }

    /// A skipped field would shift all that follow.
    fn skip_field(&mut self, _: &'static str) -> Done {
        Err(DatumError::Unsupported("skipped field"))
    }

    fn end(self) -> Done {
        Ok(())
    }
}

impl ser::SerializeTuple for Plain<'_, '_> {
    type Ok = ();
    type Error = DatumError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Done {
        Ok(())
    }
}
