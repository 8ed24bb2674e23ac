//! The back-off after a failure: client-go runs a failing plugin again at every request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::backoff::Backoff;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::failure::{Code, Failure};
use crate::store::{Store, StoreFile};

/// The pauses after failures. After an outage of the API server, a node makes its next attempt within one minute.
const PAUSES: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_mins(1),
};

/// The longest pause before the first certificate. kubeadm waits only a few minutes for a control-plane Node, on which
/// it sets the label and the taint, and then fails.
const LONGEST_BEFORE_FIRST: Duration = Duration::from_secs(5);

/// The number of consecutive failures with these short pauses: about ten minutes. A node that never joins must not
/// retry at this rate indefinitely.
const SOON_BEFORE_FIRST: u32 = 120;

/// The pauses after denials. The pauses are long, because the node cannot change the decision.
const DENIED: Backoff = Backoff {
    first: Duration::from_mins(5),
    longest: Duration::from_hours(1),
};

/// The number of unsuccessful requests after which every pause is as long as the pause after a denial. The object of
/// each unsuccessful request remains in the API server for one or two hours.
const MANY_IN_VAIN: u32 = 5;

/// The number that is subtracted from the number of unsuccessful requests. After the subtraction, the pause after the
/// fifth request is as long as the pause after a second denial. A run can create four requests, for example with a slow
/// TPM. These pauses allow at most 30 requests per hour.
const NOT_COUNTED: u32 = MANY_IN_VAIN - 2;

/// The minimum interval between runs that are allowed to delay the kubelet's heartbeats.
const IN_FULL_AGAIN: Duration = Duration::from_hours(1);

/// `failure.json`: the last failure and its back-off.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureRecord {
    /// The exit code of the failure.
    pub code: u8,
    /// The message of the first of the consecutive failures of this kind.
    pub message: String,
    /// The hint of that failure.
    pub remedy: String,
    /// The number of consecutive failures of this kind.
    pub count: u32,
    /// The number of runs that left a request behind since the last success. Failures without a request do not reset
    /// this number.
    #[serde(default)]
    pub in_vain: u32,
    /// The time of the last run with a valid credential that was allowed the full time, in seconds since 1970.
    #[serde(default)]
    pub in_full: u64,
    /// The time of the last failure, in seconds since 1970.
    pub at: u64,
    /// The end of the back-off, in seconds since 1970.
    pub not_before: u64,
    /// The boot and the settings to which the failure applies.
    #[serde(flatten)]
    pub scope: FailureScope,
}

/// The boot and the settings to which a recorded failure applies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureScope {
    /// The ID of the boot.
    pub boot_id: Option<String>,
    /// A digest of the settings.
    pub settings: String,
}

impl FailureRecord {
    /// Reads the record in the store, if one exists.
    pub(crate) fn read(store: &Store) -> Option<Self> {
        Self::parse(&store.read(StoreFile::Failure).ok().flatten()?)
    }

    /// Parses the file. Invalid content counts as no record.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The file's content.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the record of `failure`, which follows the record `previous`.
    ///
    /// The record keeps the first message of this kind of failure, because the first message contains the cause.
    pub fn after(
        previous: Option<&Self>,
        failure: &Failure,
        scope: &FailureScope,
        now: SystemTime,
    ) -> Self {
        let code = failure.code().number();
        let same = previous.filter(|record| record.code == code && record.scope == *scope);
        let count = same.map_or(1, |record| record.count.saturating_add(1));
        let before = previous.filter(|record| record.scope == *scope);
        let in_vain = before
            .map_or(0, |record| record.in_vain)
            .saturating_add(u32::from(failure.code().leaves_request()));
        let (message, remedy) = match same {
            Some(first) => (first.message.clone(), first.remedy.clone()),
            None => (failure.what().to_owned(), failure.remedy().to_owned()),
        };
        Self {
            code,
            message,
            remedy,
            count,
            in_vain,
            in_full: previous.map_or(0, |record| record.in_full),
            at: seconds(now),
            not_before: seconds(now + pause(failure.code(), count, in_vain)),
            scope: scope.clone(),
        }
    }

    /// Returns the record with the shorter pauses for a node that is joining and does not have a certificate. The
    /// pauses after a denial, and after many unsuccessful requests, do not change.
    #[must_use]
    pub fn before_first_certificate(mut self) -> Self {
        let pause = self.not_before.saturating_sub(self.at);
        if self.count <= SOON_BEFORE_FIRST && pause <= PAUSES.longest.as_secs() {
            self.not_before = self.at + pause.min(LONGEST_BEFORE_FIRST.as_secs());
        }
        self
    }

    /// Returns the end of the back-off, if the back-off is still active.
    ///
    /// A new boot or changed settings clear the back-off. A clock that was set back also clears the back-off, because
    /// the remaining time then exceeds the whole pause. For example, a machine whose clock was an hour ahead at boot
    /// retries immediately.
    pub fn holds(&self, scope: &FailureScope, now: SystemTime) -> Option<SystemTime> {
        let until = UNIX_EPOCH.checked_add(Duration::from_secs(self.not_before))?;
        let to_come = clock::until(until, now);
        let pause = Duration::from_secs(self.not_before.saturating_sub(self.at));
        let active = Code::from_number(self.code).is_some_and(Code::is_remembered)
            && self.scope == *scope
            && !to_come.is_zero()
            // Both times are rounded up to a full second.
            && to_come <= pause.min(DENIED.longest) + Duration::from_secs(1);
        active.then_some(until)
    }

    /// Whether a run with a valid credential needs the full time. It needs the full time if the device that proves the
    /// machine's identity did not respond in time, and no other run used the full time within the last hour.
    pub(crate) fn needs_full_time(&self, now: SystemTime) -> bool {
        self.code == Code::DeviceUnavailable.number() && !self.had_full_time(now)
    }

    /// Whether a run with a valid credential was allowed the full time within the last hour. False if the clock was set
    /// back after that run.
    pub fn had_full_time(&self, now: SystemTime) -> bool {
        let now = seconds(now);
        self.in_full <= now && now - self.in_full < IN_FULL_AGAIN.as_secs()
    }
}

fn pause(code: Code, count: u32, in_vain: u32) -> Duration {
    if !code.is_remembered() {
        return Duration::ZERO;
    }
    let (pauses, count) = if code == Code::Denied {
        (DENIED, count)
    } else if code.leaves_request() && in_vain >= MANY_IN_VAIN {
        (DENIED, in_vain - NOT_COUNTED)
    } else {
        (PAUSES, count)
    };
    pauses.after(count.saturating_sub(1))
}

fn seconds(time: SystemTime) -> u64 {
    // Round up, because rounding down could shorten a pause of one second to zero.
    let since = clock::since_epoch(time);
    since.as_secs() + u64::from(since.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(555_555)
    }

    fn here() -> FailureScope {
        scope_of("boot-1", "settings-1")
    }

    fn scope_of(boot: &str, settings: &str) -> FailureScope {
        FailureScope {
            boot_id: Some(boot.to_owned()),
            settings: settings.to_owned(),
        }
    }

    fn streak(code: Code, length: u32) -> FailureRecord {
        let mut record = None;
        for number in 1..=length {
            let failure = Failure::new(code, format!("failure {number}"), "wait");
            record = Some(FailureRecord::after(
                record.as_ref(),
                &failure,
                &here(),
                now(),
            ));
        }
        record.unwrap()
    }

    #[test]
    fn the_pause_doubles_up_to_a_minute_or_to_an_hour_after_a_denial() {
        for (code, count, expected) in [
            (Code::Unreachable, 1, 1),
            (Code::Unreachable, 2, 2),
            (Code::Unreachable, 6, 32),
            (Code::Unreachable, 7, 60),
            (Code::Unreachable, 100, 60),
            (Code::Denied, 1, 300),
            (Code::Denied, 2, 600),
            (Code::Denied, 4, 2400),
            (Code::Denied, 5, 3600),
            (Code::Denied, 100, 3600),
            (Code::Failed, 1, 1),
        ] {
            let until = streak(code, count).holds(&here(), now()).unwrap();
            assert_eq!(
                clock::until(until, now()).as_secs(),
                expected,
                "{code:?} {count}"
            );
        }
    }

    #[test]
    fn the_pause_before_a_first_certificate_is_5_seconds_for_10_minutes() {
        for (code, count, expected) in [
            (Code::Unreachable, 1, 1),
            (Code::Unreachable, 3, 4),
            (Code::Unreachable, 4, 5),
            (Code::Unauthorized, 120, 5),
            (Code::Unauthorized, 121, 60),
            (Code::Denied, 1, 300),
            (Code::Failed, 4, 5),
            (Code::Failed, 5, 600),
        ] {
            let record = streak(code, count).before_first_certificate();
            let until = record.holds(&here(), now()).unwrap();
            let pause = clock::until(until, now());
            assert_eq!(pause.as_secs(), expected, "{code:?} {count}");
        }
    }

    /// Simulates consecutive runs. Each run creates this many requests, and exits with the next code in `codes`.
    /// Returns the maximum number of requests within one hour.
    fn most_in_an_hour(codes: &[Code], requests: usize) -> usize {
        let mut record: Option<FailureRecord> = None;
        let mut time = now();
        let mut made = Vec::new();
        for code in codes.iter().cycle() {
            if time > now() + Duration::from_hours(24) {
                break;
            }
            if code.leaves_request() {
                made.extend(std::iter::repeat_n(time, requests));
            }
            let failure = Failure::new(*code, "in vain", "wait");
            let next = FailureRecord::after(record.as_ref(), &failure, &here(), time);
            time = next.holds(&here(), time).unwrap_or(time + PAUSES.first);
            record = Some(next);
        }
        let within = |start: &SystemTime| {
            let end = *start + Duration::from_hours(1);
            made.iter().filter(|at| (*start..end).contains(*at)).count()
        };
        made.iter().map(within).max().unwrap_or_default()
    }

    #[test]
    fn a_node_creates_at_most_30_requests_an_hour() {
        for codes in [
            &[Code::Failed][..],
            &[Code::Version],
            &[Code::Failed, Code::Version],
            &[Code::Pending, Code::Failed],
            &[Code::Unreachable, Code::Failed],
            &[Code::Version, Code::Denied, Code::DeviceUnavailable],
        ] {
            for requests in [1, 2, 4] {
                let most = most_in_an_hour(codes, requests);
                assert!(most <= 30, "{codes:?}: {requests} a run, {most} an hour");
            }
        }
    }

    #[test]
    fn the_first_4_failures_that_leave_a_request_are_retried_soon() {
        for (count, expected) in [
            (4, 8),
            (5, 600),
            (6, 1200),
            (7, 2400),
            (8, 3600),
            (99, 3600),
        ] {
            let until = streak(Code::Failed, count).holds(&here(), now()).unwrap();
            assert_eq!(clock::until(until, now()).as_secs(), expected);
        }
    }

    #[test]
    fn a_run_gets_the_full_time_limit_once_an_hour() {
        let record = FailureRecord {
            in_full: seconds(now()),
            ..streak(Code::DeviceUnavailable, 1)
        };

        assert!(!streak(Code::DeviceUnavailable, 1).had_full_time(now()));
        assert!(record.had_full_time(now() + Duration::from_mins(59)));
        assert!(!record.had_full_time(now() + Duration::from_hours(1)));
        assert!(!record.had_full_time(now() - Duration::from_mins(1)));
        let later = Failure::new(Code::Pending, "", "");
        let later = FailureRecord::after(Some(&record), &later, &here(), now());
        assert_eq!(later.in_full, record.in_full);
    }

    #[test]
    fn only_a_device_failure_requires_the_full_time_limit() {
        for number in 0..=20 {
            let record = FailureRecord {
                code: number,
                ..streak(Code::DeviceUnavailable, 1)
            };
            assert_eq!(record.needs_full_time(now()), number == 6, "{number}");
        }
        let had_it = FailureRecord {
            in_full: seconds(now()),
            ..streak(Code::DeviceUnavailable, 1)
        };
        assert!(!had_it.needs_full_time(now() + Duration::from_mins(59)));
        assert!(had_it.needs_full_time(now() + Duration::from_hours(1)));
    }

    #[test]
    fn the_first_message_of_consecutive_failures_is_kept() {
        let record = streak(Code::Denied, 3);

        assert_eq!((record.message.as_str(), record.count), ("failure 1", 3));
    }

    #[test]
    fn a_different_failure_restarts_the_backoff() {
        let other = Failure::new(Code::Unreachable, "gone", "");

        let record = FailureRecord::after(Some(&streak(Code::Denied, 3)), &other, &here(), now());

        assert_eq!((record.message.as_str(), record.count), ("gone", 1));
    }

    #[test]
    fn a_reboot_new_settings_and_elapsed_time_clear_the_backoff() {
        let record = streak(Code::Denied, 1);
        let boot = scope_of("boot-2", "settings-1");
        let settings = scope_of("boot-1", "settings-2");

        assert!(record.holds(&here(), now()).is_some());
        assert_eq!(record.holds(&boot, now()), None);
        assert_eq!(record.holds(&settings, now()), None);
        let later = now() + Duration::from_mins(5);
        assert_eq!(record.holds(&here(), later), None);
        let set_back = now() - Duration::from_hours(24);
        assert_eq!(record.holds(&here(), set_back), None);
    }

    #[test]
    fn a_clock_set_back_by_less_than_the_pause_clears_the_backoff() {
        for (code, pause) in [(Code::Unreachable, 1), (Code::Denied, 300)] {
            let record = streak(code, 1);
            let set_back = |seconds| now() - Duration::from_secs(seconds);

            assert!(record.holds(&here(), set_back(1)).is_some(), "{code:?}");
            assert_eq!(record.holds(&here(), set_back(2)), None, "{code:?}");
            assert_eq!(record.holds(&here(), set_back(3600 - pause)), None);
        }
    }

    #[test]
    fn an_impossible_pause_is_ignored() {
        for not_before in [u64::MAX, seconds(now()) + 7200] {
            let record = FailureRecord {
                not_before,
                ..streak(Code::Denied, 1)
            };

            assert_eq!(record.holds(&here(), now()), None, "{not_before}");
        }
    }

    #[test]
    fn a_local_failure_causes_no_backoff() {
        for code in [Code::Store, Code::Configuration, Code::Pending] {
            let record = streak(code, 5);
            let just_before = now() - Duration::from_millis(1);
            assert_eq!(record.holds(&here(), just_before), None, "{code:?}");
        }
    }

    #[test]
    fn an_invalid_failure_record_is_ignored_and_a_valid_one_is_kept() {
        let record = streak(Code::Failed, 2);

        let read = FailureRecord::parse(str::from_utf8(&record.to_json()).unwrap());

        assert_eq!(read, Some(record));
        assert_eq!(FailureRecord::parse("{"), None);
    }
}
