//! Content that is in the kubeconfig itself, or in a file to which the kubeconfig refers.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{PAD, STANDARD};
use serde::{Deserialize as _, Deserializer};
use zeroize::Zeroizing;

use super::Policy;
use super::error::{InvalidKubeconfig, Refused};
use crate::secret::Secret;

/// The alphabet and the padding of [`STANDARD`]. As in Go, unused bits at the end are ignored.
const AS_IN_GO: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    PAD.with_decode_allow_trailing_bits(true),
);

/// A `read` function that rejects every file, for clusters and users that are not allowed to refer to files.
pub fn no_files(_file: &str) -> Result<Zeroizing<Vec<u8>>, InvalidKubeconfig> {
    Err(InvalidKubeconfig::at("a file", Refused::File))
}

/// Deserializes a secret text. `None` if the text is empty.
pub(super) fn secret<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Secret<String>>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(Secret::new))
}

pub(super) fn filled(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Returns the content of the field or, without a field, of `file`. As in client-go, the field takes precedence. With
/// [`Policy::Tenant`], returns the error `otherwise` if the content is not UTF-8.
pub(super) fn content<E: From<InvalidKubeconfig>>(
    (field, data): (&str, Option<&str>),
    file: Option<&str>,
    (policy, place): (Policy, &str),
    otherwise: Refused,
    read: &impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, E>,
) -> Result<Option<Zeroizing<String>>, E> {
    let Some(data) = data else {
        let bytes = file.map(read).transpose()?;
        return Ok(bytes.as_deref().map(|bytes| text(bytes)));
    };
    let refuse = |why| InvalidKubeconfig::new(place, field, why);
    let bytes = decode(data, policy).ok_or(refuse(Refused::NotBase64))?;
    if policy == Policy::Tenant && str::from_utf8(&bytes).is_err() {
        return Err(refuse(otherwise).into());
    }
    Ok(Some(text(&bytes)))
}

/// Decodes a field. With [`Policy::Machine`], line breaks are ignored, as in Go.
fn decode(data: &str, policy: Policy) -> Option<Zeroizing<Vec<u8>>> {
    let bytes = match policy {
        Policy::Tenant => STANDARD.decode(data),
        Policy::Machine => {
            let lines = data.split(['\r', '\n']);
            AS_IN_GO.decode(Zeroizing::new(lines.collect::<String>()).as_bytes())
        }
    };
    bytes.ok().map(Zeroizing::new)
}

/// Converts the bytes to text. Only comments around PEM blocks can have a different encoding, and the comments are not
/// used.
fn text(bytes: &[u8]) -> Zeroizing<String> {
    Zeroizing::new(String::from_utf8_lossy(bytes).into_owned())
}
