//! The validity of certificates.

use std::time::Duration;

use crate::lifetimes::Lifetimes;
use crate::refusal::Denial;
use crate::verifier::Verifier;

/// The shortest that the API server lets anybody ask for.
const MIN_REQUESTED: Duration = Duration::from_mins(10);

/// No policy can grant more: node certificates are to be renewed.
const MAX_GRANTED: Duration = Duration::from_hours(10 * 366 * 24);

/// Checks that the requested validity of a serving certificate that kube-controller-manager signs is
/// within policy. kubelets request none: the certificate is then valid for its
/// `--cluster-signing-duration`.
pub(crate) fn served_by_others(
    requested: Option<Duration>,
    lifetimes: &Lifetimes,
) -> Result<(), Denial> {
    let granted = granted_for_serving(None, lifetimes);
    match requested.filter(|asked| *asked > granted) {
        Some(asked) => Err(Denial::ExpirationTooLong { asked, granted }),
        None => Ok(()),
    }
}

/// The requested validity, or the longest that policy grants if that is less or nothing is requested.
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
    at_most(most, requested)
}

/// The same for a serving certificate, which only an attested node can have.
pub(crate) fn granted_for_serving(requested: Option<Duration>, lifetimes: &Lifetimes) -> Duration {
    at_most(lifetimes.attested, requested)
}

fn at_most(most: Duration, requested: Option<Duration>) -> Duration {
    requested
        .map_or(most, |requested| requested.max(MIN_REQUESTED).min(most))
        .min(MAX_GRANTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_policy_grants_more_than_ten_years() {
        let day = Duration::from_hours(24);
        assert_eq!(at_most(4000 * day, None), 3660 * day);
        assert_eq!(at_most(4000 * day, Some(3000 * day)), 3000 * day);
    }
}
