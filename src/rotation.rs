//! The decision to keep, renew or replace a credential: a pure function of time.

use std::time::{Duration, SystemTime};

use kubelet_attestation::contract::CERTIFICATE_BACKDATING;

use crate::clock::{CLOCK_LEEWAY, until};

/// If less than this share of its lifetime is left, a credential is renewed, regardless of its age.
///
/// Source: the client CSR flow in the proposal ("less than 20 percent of time left").
const RENEW_BELOW: f64 = 0.2;

/// A certificate with a long lifetime is renewed about once per day, so that the machine attests about once per day.
const DAILY: (f64, f64) = (20.0 * 3600.0, 28.0 * 3600.0);

/// A certificate with a short lifetime is renewed within this share of its lifetime.
const SHARE: (f64, f64) = (0.5, 0.7);

/// The interval of client-go's calls while no renewal is due, so that changes of settings or of the store take effect.
const ASK_AGAIN: Duration = Duration::from_hours(1);

/// The interval of client-go's calls while a renewal is pending or has failed.
const ASK_AGAIN_SOON: Duration = Duration::from_secs(30);

/// The minimum interval of client-go's calls. With an expiry in the past, client-go runs the plugin twice per request.
const ASK_AGAIN_MIN: Duration = Duration::from_secs(1);

/// A number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Fraction(f64);

impl Fraction {
    /// The fraction whose digits in base 256 are the last four of `bytes`, in reverse order.
    ///
    /// The serial number of a certificate is random, which spreads the renewals of many nodes. The fraction is the same
    /// in every run.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        // Use the last bytes, because the first bytes of a serial number can be a sign byte, or leading zeros of a
        // counter.
        let (fraction, _) = bytes
            .iter()
            .rev()
            .take(4)
            .fold((0.0, 1.0 / 256.0), |(sum, weight), byte| {
                (sum + f64::from(*byte) * weight, weight / 256.0)
            });
        Self(fraction)
    }

    fn between(self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * self.0
    }
}

/// The action for a stored credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Print the credential, because no renewal is due.
    Keep,
    /// Renew the credential. If no new credential is available in time, print the old credential, which is still valid.
    Renew,
    /// Do not use the credential, because it has expired or is not valid yet. Enroll with the bootstrap credential.
    Enrol,
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment of the period.
    pub not_before: SystemTime,
    /// The moment after the period.
    pub not_after: SystemTime,
}

impl Validity {
    /// The time at which the signer signed the certificate.
    pub fn issued(&self) -> SystemTime {
        self.not_before + CERTIFICATE_BACKDATING
    }

    /// The time from issuance to expiry.
    pub fn lifetime(&self) -> Duration {
        until(self.not_after, self.issued())
    }

    /// The remaining share of the lifetime at `now`, from 0 to 1.
    pub fn share_left(&self, now: SystemTime) -> f64 {
        let lifetime = self.lifetime().as_secs_f64();
        let left = until(self.not_after, now);
        if lifetime > 0.0 {
            (left.as_secs_f64() / lifetime).min(1.0)
        } else {
            0.0
        }
    }

    /// Whether the remaining share of the lifetime makes a renewal due, regardless of the jitter.
    pub fn runs_out(&self, now: SystemTime) -> bool {
        self.share_left(now) < RENEW_BELOW
    }

    /// Whether the certificate is valid at `now` from the point of view of an API server.
    ///
    /// A new certificate also counts as valid if the clock is behind by up to `CLOCK_LEEWAY`.
    pub fn holds_at(&self, now: SystemTime) -> bool {
        now < self.not_after && now + CLOCK_LEEWAY >= self.not_before
    }

    /// The time at which the renewal is due. `jitter` comes from the certificate.
    pub fn renew_at(&self, jitter: Fraction) -> SystemTime {
        let share = jitter.between(SHARE) * self.lifetime().as_secs_f64();
        self.issued() + Duration::from_secs_f64(jitter.between(DAILY).min(share))
    }

    /// The action at `now` for a credential with this validity. `jitter` comes from the certificate.
    pub fn rotation(&self, now: SystemTime, jitter: Fraction) -> Rotation {
        if !self.holds_at(now) {
            Rotation::Enrol
        } else if now >= self.renew_at(jitter) || self.runs_out(now) {
            Rotation::Renew
        } else {
            Rotation::Keep
        }
    }

    /// The time at which client-go must run the plugin again, for a credential that needs no renewal until `until`.
    pub fn expiry_kept(&self, now: SystemTime, until: SystemTime) -> SystemTime {
        self.expiry(now, until.min(now + ASK_AGAIN))
    }

    /// The time at which client-go must run the plugin again, for a credential whose renewal is not complete. The next
    /// attempt is at `next_attempt`.
    pub fn expiry_awaiting_renewal(&self, now: SystemTime, next_attempt: SystemTime) -> SystemTime {
        self.expiry(now, next_attempt.min(now + ASK_AGAIN_SOON))
    }

    fn expiry(&self, now: SystemTime, wanted: SystemTime) -> SystemTime {
        wanted.max(now + ASK_AGAIN_MIN).min(self.not_after)
    }
}

#[cfg(test)]
mod tests {
    use super::Rotation::{Enrol, Keep, Renew};
    use super::*;

    const EPOCH: SystemTime = SystemTime::UNIX_EPOCH;
    const MINUTE: Duration = Duration::from_mins(1);
    const HOUR: Duration = Duration::from_hours(1);
    const DAY: Duration = Duration::from_hours(24);

    const HALF: Fraction = Fraction(0.5);

    fn start() -> SystemTime {
        EPOCH + 1000 * DAY
    }

    fn valid_for(lifetime: Duration) -> Validity {
        Validity {
            not_before: start() - CERTIFICATE_BACKDATING,
            not_after: start() + lifetime,
        }
    }

    #[test]
    fn a_credential_is_kept_renewed_or_replaced_depending_on_its_age() {
        let week = valid_for(7 * DAY);

        for (hours, expected) in [
            (0, Keep),
            (23, Keep),
            (24, Renew),
            (167, Renew),
            (168, Enrol),
            (1000, Enrol),
        ] {
            assert_eq!(
                week.rotation(start() + hours * HOUR, HALF),
                expected,
                "after {hours} h"
            );
        }
    }

    #[test]
    fn a_short_lived_certificate_is_renewed_at_half_of_its_lifetime() {
        let hour = valid_for(HOUR);

        for (jitter, minutes, expected) in [
            (0.0, 29, Keep),
            (0.0, 30, Renew),
            (0.5, 35, Keep),
            (0.5, 36, Renew),
            (1.0, 41, Keep),
            (1.0, 42, Renew),
            (1.0, 59, Renew),
            (1.0, 60, Enrol),
        ] {
            assert_eq!(
                hour.rotation(start() + minutes * MINUTE, Fraction(jitter)),
                expected,
                "after {minutes} min with {jitter}"
            );
        }
    }

    #[test]
    fn jitter_spreads_daily_renewals_over_eight_hours() {
        let year = valid_for(365 * DAY);

        assert_eq!(year.renew_at(Fraction(0.0)), start() + 20 * HOUR);
        assert_eq!(year.renew_at(Fraction(1.0)), start() + 28 * HOUR);
    }

    #[test]
    fn a_certificate_with_under_20_percent_of_its_lifetime_runs_out() {
        let year = valid_for(100 * DAY);

        assert!(!year.runs_out(start() + 80 * DAY));
        assert!(year.runs_out(start() + 80 * DAY + MINUTE));
    }

    #[test]
    fn a_certificate_without_a_lifetime_is_renewed_while_it_is_valid() {
        let odd = Validity {
            not_before: start(),
            not_after: start() + MINUTE,
        };

        assert_eq!(odd.rotation(start(), HALF), Renew);
    }

    #[test]
    fn a_clock_that_is_five_minutes_slow_is_accepted() {
        let week = valid_for(7 * DAY);
        let earliest = week.not_before - CLOCK_LEEWAY;

        assert_eq!(week.rotation(earliest, HALF), Keep);
        assert_eq!(
            week.rotation(earliest - Duration::from_secs(1), HALF),
            Enrol
        );
    }

    #[test]
    fn the_kubelet_reloads_a_kept_credential_within_an_hour() {
        let week = valid_for(7 * DAY);
        let now = start();

        assert_eq!(week.expiry_kept(now, now + 20 * HOUR), now + HOUR);
        assert_eq!(week.expiry_kept(now, now + 10 * MINUTE), now + 10 * MINUTE);
        let end = week.not_after - MINUTE;
        assert_eq!(week.expiry_kept(end, week.not_after), week.not_after);
    }

    #[test]
    fn the_kubelet_reloads_a_credential_at_the_next_renewal_attempt() {
        let week = valid_for(7 * DAY);
        let now = start();
        let seconds = Duration::from_secs;

        for (next_attempt, expected) in [(60, 30), (30, 30), (4, 4), (0, 1)] {
            assert_eq!(
                week.expiry_awaiting_renewal(now, now + seconds(next_attempt)),
                now + seconds(expected)
            );
        }
        let end = week.not_after - seconds(5);
        assert_eq!(
            week.expiry_awaiting_renewal(end, end + seconds(20)),
            week.not_after
        );
    }

    #[test]
    fn the_jitter_fraction_comes_from_the_last_bytes() {
        assert_eq!(Fraction::from_bytes(&[]), Fraction(0.0));
        assert_eq!(Fraction::from_bytes(&[0, 0, 0, 0x80]), HALF);
        assert!(Fraction::from_bytes(&[0xff; 20]) < Fraction(1.0));
        assert!(Fraction::from_bytes(&[0xff; 20]) > Fraction(0.999));
    }
}
