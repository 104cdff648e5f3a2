//! The content blocks of a request, measured: how much is text, how much is pictures and documents.
//!
//! Nothing here judges the conversation; the provider does. The order of a block's members is free, so what its data is
//! gets known only at its end.

use crate::json::{Cursor, JsonError, Kind, Text};

/// What was found in the contents of all messages.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) images: u32,
    /// Bytes of pictures inside the request.
    pub(super) image_bytes: u64,
    /// Bytes of documents inside the request that are not text.
    pub(super) document_bytes: u64,
    /// Documents named by an address or id.
    pub(super) document_references: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Block {
    #[default]
    Other,
    Image,
    Document,
}

#[derive(Debug, Clone, Copy, Default)]
struct Source {
    /// Bytes of base64 data; none for text and for references.
    data_bytes: u64,
    is_reference: bool,
}

impl Contents {
    /// Reads `content`: a string, or an array of blocks, which may hold further ones (tool results, documents).
    pub(super) fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.peek()? != Kind::Array {
            cursor.skip()?;
            return Ok(());
        }
        cursor.elements(
            |cursor, _| {
                if cursor.peek()? == Kind::Object { self.block(cursor) } else { cursor.skip().map(|_| ()) }
            },
        )?;
        Ok(())
    }

    fn block(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let (mut block, mut source) = (Block::Other, Source::default());
        cursor.members(|cursor, key| {
            let kind = cursor.peek()?;
            if key.is("type") && kind == Kind::String {
                let name = cursor.string()?;
                block = if name.is("image") {
                    Block::Image
                } else if name.is("document") {
                    Block::Document
                } else {
                    Block::Other
                };
                return Ok(());
            }
            if key.is("source") && kind == Kind::Object {
                source = self.source(cursor)?;
                return Ok(());
            }
            if key.is("content") { self.read(cursor) } else { cursor.skip().map(|_| ()) }
        })?;
        match block {
            Block::Other => {}
            Block::Image => {
                self.images = self.images.saturating_add(1);
                self.image_bytes += source.data_bytes;
            }
            Block::Document => {
                self.document_bytes += source.data_bytes;
                self.document_references = self.document_references.saturating_add(u32::from(source.is_reference));
            }
        }
        Ok(())
    }

    fn source(&mut self, cursor: &mut Cursor<'_>) -> Result<Source, JsonError> {
        let (mut source, mut data_bytes, mut is_base64) = (Source::default(), 0, false);
        cursor.members(|cursor, key| {
            let kind = cursor.peek()?;
            if key.is("type") && kind == Kind::String {
                let name: Text<'_> = cursor.string()?;
                is_base64 = name.is("base64");
                source.is_reference = name.is("url") || name.is("file");
                return Ok(());
            }
            if key.is("data") && kind == Kind::String {
                data_bytes = cursor.string()?.raw().len() as u64;
                return Ok(());
            }
            if key.is("content") { self.read(cursor) } else { cursor.skip().map(|_| ()) }
        })?;
        if is_base64 {
            source.data_bytes = data_bytes;
        }
        Ok(source)
    }
}
