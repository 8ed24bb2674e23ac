//! The limits on the age of evidence.
//!
//! The limits use three clocks: the node's clock sets the date of the signature, the API server's clock sets the date
//! of the request, and the controller's clock shows the current time. No single clock can make evidence fresh, because
//! STS also checks the date with its own clock.

use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use kubelet_attestation::contract::MAX_EVIDENCE_AGE;
use node_attestation_core::refusal::{Denial, Failure, Refusal};
use node_attestation_core::time::until;

/// The maximum time by which STS allows the date of a signature to be ahead ("+ 15 min."). The controller applies the
/// same limit, so a controller clock that is 10 minutes slow does not block nodes. STS rejects a node whose clock is
/// fast.
pub(super) const MAX_AHEAD: Duration = Duration::from_mins(15);

/// The time for which STS accepts a signature.
const VALID: Duration = Duration::from_mins(15);

/// Checks the date of a signature against the later of two times: the API server's time of the request, and the time on
/// the controller's clock. Returns the time at which STS stops accepting the signature.
///
/// # Errors
///
/// [`Failure::EvidenceExpired`] if the signature is too old, or its date is too far ahead.
/// [`Denial::EvidenceMalformed`] if the date is invalid.
pub(super) fn fresh_until(
    amz_date: &str,
    asked: SystemTime,
    now: SystemTime,
) -> Result<SystemTime, Refusal> {
    let signed = time(amz_date)
        .ok_or_else(|| Denial::EvidenceMalformed("invalid sts.amzDate".to_owned()))?;
    let latest = now.max(asked);
    let age = until(latest, signed);
    let ahead = until(signed, latest);
    if age > MAX_EVIDENCE_AGE || ahead > MAX_AHEAD {
        return Err(Failure::EvidenceExpired.into());
    }
    Ok(signed + VALID)
}

fn time(amz_date: &str) -> Option<SystemTime> {
    let civil = DateTime::strptime("%Y%m%dT%H%M%SZ", amz_date).ok()?;
    let zoned = civil.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = "20260101T120000Z";

    fn at(minutes: f64) -> SystemTime {
        let noon = Duration::from_hours(490_908);
        let after = Duration::from_secs_f64((minutes.abs() * 60.0).round());
        if minutes < 0.0 {
            SystemTime::UNIX_EPOCH + noon - after
        } else {
            SystemTime::UNIX_EPOCH + noon + after
        }
    }

    fn expired(asked: f64, now: f64) -> bool {
        match fresh_until(SIGNED, at(asked), at(now)) {
            Ok(until) => {
                assert_eq!(until, at(15.0));
                false
            }
            Err(Refusal::Fail(Failure::EvidenceExpired)) => true,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn evidence_is_fresh_for_fourteen_minutes() {
        for (asked, now, expected) in [
            (0.0, 0.0, false),
            (0.1, 13.9, false),
            (0.1, 14.0, false),
            (0.1, 14.1, true),
            (0.1, 60.0, true),
            // According to the API server's clock, the evidence was already old when it arrived.
            (14.1, 0.0, true),
            // The controller's clock is ten minutes slow or fast.
            (0.1, -9.9, false),
            (0.1, 10.1, false),
            // The API server's clock is slow or fast.
            (-10.0, 0.1, false),
            (10.0, 0.1, false),
            // Both clocks are behind the node's clock.
            (-14.9, -14.9, false),
            (-15.0, -15.0, false),
            (-15.1, -15.1, true),
            // One of the two clocks agrees with the node's clock.
            (-60.0, 0.0, false),
            (0.0, -60.0, false),
        ] {
            assert_eq!(expired(asked, now), expected, "asked {asked}, now {now}");
        }
    }

    #[test]
    fn a_date_that_does_not_exist_is_malformed() {
        for date in [
            "20260230T000000Z",
            "20261301T000000Z",
            "20260101T250000Z",
            "",
        ] {
            let refused = fresh_until(date, at(0.0), at(0.0));

            assert!(
                matches!(
                    refused,
                    Err(Refusal::Deny(Denial::EvidenceMalformed { .. }))
                ),
                "{date}: {refused:?}"
            );
        }
    }
}
