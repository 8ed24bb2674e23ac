//! How long a certificate is valid.

use std::time::Duration;

use crate::decide::Lifetimes;
use crate::verifier::Verifier;

/// The shortest that the API server lets anybody ask for.
const MIN_REQUESTED: Duration = Duration::from_mins(10);

/// No policy can grant more: node certificates are to be renewed.
const MAX_GRANTED: Duration = Duration::from_hours(10 * 366 * 24);

/// What is asked for, or the most that policy grants if that is less or nothing is asked.
pub(crate) fn granted(
    requested: Option<Duration>,
    verifier: &dyn Verifier,
    lifetimes: &Lifetimes,
) -> Duration {
    let most = if verifier.versions().is_empty() {
        lifetimes.insecure
    } else {
        lifetimes.attested
    };
    requested
        .map_or(most, |requested| requested.max(MIN_REQUESTED).min(most))
        .min(MAX_GRANTED)
}
