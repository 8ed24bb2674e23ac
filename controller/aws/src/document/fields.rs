//! The fields of a constructed DER element, read in order.

use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Encode, Reader, SliceReader, Tag, TagNumber};

/// An element that is not what stands there.
#[derive(Debug)]
pub(super) struct Unexpected;

impl From<x509_cert::der::Error> for Unexpected {
    fn from(_: x509_cert::der::Error) -> Self {
        Self
    }
}

/// The constructed tag `[number]`.
pub(super) const fn context(number: u32) -> Tag {
    Tag::ContextSpecific {
        constructed: true,
        number: TagNumber(number),
    }
}

/// The elements within one element.
#[derive(Clone)]
pub(super) struct Fields<'a>(SliceReader<'a>);

impl<'a> Fields<'a> {
    /// The elements of these bytes.
    pub(super) fn new(content: &'a [u8]) -> Result<Self, Unexpected> {
        Ok(Self(SliceReader::new(content)?))
    }

    /// The elements within `element`.
    pub(super) fn of(element: AnyRef<'a>) -> Result<Self, Unexpected> {
        Self::new(element.value())
    }

    /// The next element, which has `tag`.
    pub(super) fn element(&mut self, tag: Tag) -> Result<AnyRef<'a>, Unexpected> {
        self.optional(tag)?.ok_or(Unexpected)
    }

    /// The next element, if there is one with `tag`.
    pub(super) fn optional(&mut self, tag: Tag) -> Result<Option<AnyRef<'a>>, Unexpected> {
        if self.is_empty() || Tag::peek(&self.0)? != tag {
            return Ok(None);
        }
        Ok(Some(AnyRef::decode(&mut self.0)?))
    }

    /// The fields of the next element, which has `tag`.
    pub(super) fn within(&mut self, tag: Tag) -> Result<Self, Unexpected> {
        Self::of(self.element(tag)?)
    }

    /// The next element, which is of type `T`.
    pub(super) fn value<T: Decode<'a>>(&mut self) -> Result<T, Unexpected> {
        self.0.decode().map_err(|_| Unexpected)
    }

    /// Whether the input ends here.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_finished()
    }

    /// Nothing is left.
    pub(super) fn end(&self) -> Result<(), Unexpected> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(Unexpected)
        }
    }
}

/// The DER of a SET with the content of `element`.
pub(super) fn as_set(element: AnyRef<'_>) -> Result<Vec<u8>, Unexpected> {
    Ok(AnyRef::new(Tag::Set, element.value())?.to_der()?)
}
