//! Certificate names and dates, for operators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

/// The maximum length of a name in a message, in characters. Vendors' names have fewer than 100 characters.
pub(super) const MAX_LEN: usize = 160;

/// Returns the name in quotation marks.
pub(super) fn name(name: &X509Name<'_>) -> String {
    format!("\"{}\"", text(name))
}

/// Returns the name on one line. Special characters are escaped, because the issuer of a certificate chooses the name.
pub(super) fn text(name: &X509Name<'_>) -> String {
    let text = name.to_string();
    let end = text.char_indices().nth(MAX_LEN).map(|(end, _)| end);
    let shown = end.and_then(|end| text.get(..end)).unwrap_or(&text);
    let rest = if end.is_some() { "…" } else { "" };
    format!("{}{rest}", shown.escape_debug())
}

/// Formats the date, in UTC.
pub(super) fn date(time: ASN1Time) -> String {
    let time = time.to_datetime();
    let month = u8::from(time.month());
    format!("{:04}-{month:02}-{:02}", time.year(), time.day())
}

/// Converts the time for comparisons with a clock. A time before the epoch becomes the epoch.
pub(super) fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(seconds)
}
