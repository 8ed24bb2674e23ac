//! The validity of certificates.

use std::time::Duration;

use crate::refusal::Denial;

/// The minimum validity that the API server accepts in a request.
const MIN_REQUESTED: Duration = Duration::from_mins(10);

/// The upper limit for the maximum validity in any policy, because node certificates must be renewed.
const MAX_GRANTED: Duration = Duration::from_hours(10 * 366 * 24);

/// Checks that the requested validity of a serving certificate that kube-controller-manager signs is within the policy.
/// If the request does not specify a validity, as requests from kubelets, kube-controller-manager's
/// `--cluster-signing-duration` applies.
pub(crate) fn served_by_others(
    requested: Option<Duration>,
    longest: Duration,
) -> Result<(), Denial> {
    let granted = at_most(longest, None);
    match requested.filter(|asked| *asked > granted) {
        Some(asked) => Err(Denial::ExpirationTooLong { asked, granted }),
        None => Ok(()),
    }
}

/// Returns the requested validity, limited to the policy's maximum. If the request does not specify a validity, returns
/// this maximum.
pub(crate) fn at_most(most: Duration, requested: Option<Duration>) -> Duration {
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
