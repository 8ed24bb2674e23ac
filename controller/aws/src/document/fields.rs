//! The fields of a constructed DER element, read in order.

use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Encode as _, Error, Reader as _, SliceReader, Tag, TagNumber, Tagged as _};

/// The constructed tag `[number]`.
pub(super) const fn context(number: u32) -> Tag {
    Tag::ContextSpecific {
        constructed: true,
        number: TagNumber(number),
    }
}

/// Reads the next element if it has this `tag`.
pub(super) fn optional<'a>(
    fields: &mut SliceReader<'a>,
    tag: Tag,
) -> Result<Option<AnyRef<'a>>, Error> {
    if fields.is_finished() || Tag::peek(fields)? != tag {
        return Ok(None);
    }
    fields.decode().map(Some)
}

/// Reads the fields of the next element, which must have this `tag`.
pub(super) fn within<'a>(fields: &mut SliceReader<'a>, tag: Tag) -> Result<SliceReader<'a>, Error> {
    let element: AnyRef<'a> = fields.decode()?;
    element.tag().assert_eq(tag)?;
    SliceReader::new(element.value())
}

/// Returns the DER of a SET with the content of `element`.
pub(super) fn as_set(element: AnyRef<'_>) -> Result<Vec<u8>, Error> {
    AnyRef::new(Tag::Set, element.value())?.to_der()
}
