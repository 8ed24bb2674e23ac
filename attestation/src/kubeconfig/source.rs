//! Content that is in the kubeconfig itself, or in a file that it names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize as _, Deserializer};
use zeroize::Zeroizing;

use super::error::{InvalidKubeconfig, Refused};
use crate::secret::Secret;

/// Reads no file: for clusters and users that may not name one.
pub fn no_files(_file: &str) -> Result<Zeroizing<String>, InvalidKubeconfig> {
    Err(InvalidKubeconfig::at("a file", Refused::File))
}

/// Text that is not shown; `None` if it is empty.
pub(super) fn secret<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Secret<String>>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(Secret::new))
}

pub(super) fn filled(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// The content of the field, or else of `file`. As in client-go, the kubeconfig itself wins. Content
/// that is not UTF-8 is refused with `otherwise`.
pub(super) fn content<E: From<InvalidKubeconfig>>(
    (field, data): (&str, Option<&str>),
    file: Option<&str>,
    place: &str,
    otherwise: Refused,
    read: &impl Fn(&str) -> Result<Zeroizing<String>, E>,
) -> Result<Option<Zeroizing<String>>, E> {
    let Some(data) = data else {
        return file.map(read).transpose();
    };
    let bytes = STANDARD.decode(data).map_err(|_| Refused::NotBase64);
    let text = bytes.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| {
            // The content may be a key, so its memory is zeroed.
            drop(Secret::new(error.into_bytes()));
            otherwise
        })
    });
    let text = text.map_err(|why| InvalidKubeconfig::new(place, field, why))?;
    Ok(Some(Zeroizing::new(text)))
}
