//! The value of the extension with the provider ID: one DER `UTF8String`.

use x509_cert::der::asn1::Utf8StringRef;
use x509_cert::der::{Decode as _, Encode as _, Error};

use crate::names::ProviderId;

/// Encodes the value of the extension.
///
/// # Errors
///
/// Returns an error if the provider ID is longer than DER can encode.
pub fn provider_id_value(id: &ProviderId) -> Result<Vec<u8>, Error> {
    Utf8StringRef::new(id.as_str())?.to_der()
}

/// The text in the value of the extension, which is not necessarily a provider ID. `None` if the value is not exactly
/// one DER `UTF8String`.
pub fn provider_id_text(value: &[u8]) -> Option<&str> {
    let text = Utf8StringRef::from_der(value).ok()?;
    Some(text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_id_is_encoded_as_one_utf8_string() {
        let id = ProviderId::parse("aws:///a/i-1").unwrap();

        let value = provider_id_value(&id).unwrap();

        assert_eq!(value, [b"\x0c\x0c".as_slice(), b"aws:///a/i-1"].concat());
        assert_eq!(provider_id_text(&value), Some("aws:///a/i-1"));
    }

    #[test]
    fn a_value_that_is_not_exactly_one_utf8_string_has_no_text() {
        for value in [
            b"".as_slice(),
            b"a",
            // The cases are a `PrintableString`, a length that is not minimal, a missing byte, and an additional byte.
            b"\x13\x01a",
            b"\x0c\x81\x01a",
            b"\x0c\x02a",
            b"\x0c\x01ab",
        ] {
            assert_eq!(provider_id_text(value), None, "{value:?}");
        }
        assert_eq!(provider_id_text(b"\x0c\x01a"), Some("a"));
    }
}
