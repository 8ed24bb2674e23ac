//! Observations about a cluster's machines from their evidence, in addition to the decisions on requests: certificates
//! that expire soon, and boots that the firmware did not measure.
//!
//! Observations are kept in memory. After a start, they are incomplete until every machine has renewed its certificate.
//! Until then, the conditions do not change.
//!
//! Each `elapsed` is a monotonic time, because the wall clock can be changed between two observations.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::unshared::Unshared;
use node_attestation_core::verifier::{Expiring, Findings};
use node_attestation_runtime::shared::{Lock, Share, Shared, Shares};

use crate::policy::TpmPolicy;

/// The remaining validity below which a certificate is reported.
const SOON: Duration = Duration::from_hours(24 * 90);

/// The time within which every machine renews its certificate. A machine renews every day, or after at most 28 hours.
const ALL_RENEW: Duration = Duration::from_hours(36);

/// The time after which a machine without new evidence is removed, because it is switched off or deleted.
const FORGOTTEN: Duration = Duration::from_hours(24 * 8);

/// The maximum number of observed machines in one cluster. Conditions do not need more machines.
const MAX_MACHINES: usize = 4096;

/// The maximum number of observed machines in all Clusters of one namespace. A machine uses memory until it is removed,
/// even after its Machine was deleted.
const MAX_OF_NAMESPACE: usize = 16_384;

/// The number of machines that are observed in each cluster even if the namespace has reached its limit, so that the
/// conditions of the cluster remain correct.
const OWN: usize = 8;

/// The number of observed machines in each namespace.
static NAMESPACES: LazyLock<Shared<Shares>> =
    LazyLock::new(|| Shared::new(Lock::Observations, Shares::default()));

/// The maximum number of machines or certificates that a condition lists. The condition also contains the number of the
/// remaining machines or certificates.
const MAX_NAMED: usize = 5;

/// The observations about the machines of one cluster. Only the cluster's verifiers share these observations.
#[derive(Debug, Default)]
pub struct Observations {
    /// The namespace of the cluster. Empty without a management cluster.
    namespace: String,
    /// Not shared: only one cluster uses this lock.
    seen: Unshared<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The time of the first call of [`findings`](Observations::findings).
    since: Option<Duration>,
    /// The machines with a certificate that expires soon.
    expiring: Machines<Expiring>,
    /// The machines with registers that the firmware did not extend.
    unmeasured: Machines<Vec<u8>>,
}

/// Observations, keyed by the name of the Machine.
type Machines<T> = BTreeMap<String, Observed<T>>;

#[derive(Debug)]
struct Observed<T> {
    /// The time at which the machine sent the evidence.
    at: Duration,
    found: T,
    /// The machine's share of the namespace's limit.
    _share: Share,
}

impl Observations {
    /// Creates the observations of a cluster in this namespace.
    pub fn of_namespace(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            seen: Unshared::default(),
        }
    }

    /// Records the earliest expiry time of the certificates for a machine's endorsement key.
    pub(crate) fn certificate(
        &self,
        machine: &str,
        end: Expiring,
        (now, elapsed): (SystemTime, Duration),
    ) {
        let end = (end.at <= now + SOON).then_some(end);
        let of = (self.namespace.as_str(), machine);
        note(&mut self.seen.lock().expiring, of, end, elapsed);
    }

    /// Records the registers of a machine that its firmware did not extend.
    pub(crate) fn boot(&self, machine: &str, unmeasured: Vec<u8>, elapsed: Duration) {
        let unmeasured = (!unmeasured.is_empty()).then_some(unmeasured);
        let of = (self.namespace.as_str(), machine);
        note(&mut self.seen.lock().unmeasured, of, unmeasured, elapsed);
    }

    /// Returns the findings, given this policy.
    pub(crate) fn findings(
        &self,
        policy: &TpmPolicy,
        (now, elapsed): (SystemTime, Duration),
    ) -> Findings {
        let mut seen = self.seen.lock();
        forget(&mut seen.expiring, elapsed);
        forget(&mut seen.unmeasured, elapsed);
        let since = *seen.since.get_or_insert(elapsed);
        let is_complete = elapsed >= since + ALL_RENEW;
        let (certificates, expiring) = seen.certificates(policy, is_complete, now);
        Findings {
            conditions: vec![certificates, seen.boots(policy, is_complete)],
            expiring,
            unmeasured: policy.registers.is_empty().then_some(seen.unmeasured.len()),
        }
    }
}

/// Records an observation about a machine in this namespace, or removes it if `found` is `None`.
fn note<T>(
    machines: &mut Machines<T>,
    (namespace, machine): (&str, &str),
    found: Option<T>,
    elapsed: Duration,
) {
    let Some(found) = found else {
        machines.remove(machine);
        return;
    };
    if let Some(known) = machines.get_mut(machine) {
        known.at = elapsed;
        known.found = found;
        return;
    }
    let share = NAMESPACES.write(|namespaces| namespaces.of(namespace));
    let has_room = share.count() <= MAX_OF_NAMESPACE || machines.len() < OWN;
    if has_room && machines.len() < MAX_MACHINES {
        let observed = Observed {
            at: elapsed,
            found,
            _share: share,
        };
        machines.insert(machine.to_owned(), observed);
    }
}

fn forget<T>(machines: &mut Machines<T>, elapsed: Duration) {
    machines.retain(|_, observed| elapsed <= observed.at + FORGOTTEN);
}

impl Seen {
    fn certificates(
        &self,
        policy: &TpmPolicy,
        is_complete: bool,
        now: SystemTime,
    ) -> (ConditionReport, Option<Expiring>) {
        let report = |holds, reason, message| ConditionReport {
            of: conditions::ENDORSEMENT_CERTIFICATES_VALID,
            holds,
            reason,
            message,
        };
        if policy.authorities.is_empty() {
            let message = "requireCA is empty".to_owned();
            let report = report(ConditionStatus::True, reason::NOT_APPLICABLE, message);
            return (report, None);
        }
        let authorities = policy.authorities.ends();
        let authorities = authorities
            .filter(|end| end.at <= now + SOON)
            .map(|end| (end, "requireCA".to_owned()));
        let machines = self.expiring.iter();
        let machines =
            machines.map(|(machine, one)| (one.found.clone(), format!("Machine {machine}")));
        let mut ends: Vec<_> = authorities.chain(machines).collect();
        ends.sort();
        let Some((first, _)) = ends.first() else {
            return (
                if is_complete {
                    let message = "no known certificate expires within 90 days".to_owned();
                    report(ConditionStatus::True, reason::CERTIFICATES_VALID, message)
                } else {
                    let message =
                        "not all machines have sent their certificates since the controller started".to_owned();
                    report(ConditionStatus::Unknown, reason::PENDING, message)
                },
                None,
            );
        };
        let named = ends
            .iter()
            .take(MAX_NAMED)
            .map(|(Expiring { at, subject }, of)| {
                let verb = if *at < now { "expired" } else { "expires" };
                format!("\"{subject}\" ({of}) {verb} on {}", day(*at))
            });
        let message = format!(
            "{}. From then on, the controller denies the affected machines: add a certificate of the CA with a \
             later expiry, or remove requireCA",
            listed(named.collect(), ends.len())
        );
        let reason = if first.at < now {
            reason::CERTIFICATE_EXPIRED
        } else {
            reason::CERTIFICATE_EXPIRES
        };
        let first = first.clone();
        (report(ConditionStatus::False, reason, message), Some(first))
    }

    fn boots(&self, policy: &TpmPolicy, is_complete: bool) -> ConditionReport {
        use ConditionStatus::{False, True, Unknown};
        let (holds, reason, message) = if !policy.registers.is_empty() {
            let message =
                "pcrPolicy denies machines whose firmware does not measure their boot".to_owned();
            (True, reason::NOT_APPLICABLE, message)
        } else if !self.unmeasured.is_empty() {
            let named = self.unmeasured.iter().take(MAX_NAMED);
            let named = named.map(|(machine, one)| {
                let registers: Vec<_> = one.found.iter().map(u8::to_string).collect();
                format!("{machine} (registers {})", registers.join(", "))
            });
            let message = format!(
                "these machines quote a PCR bank that their firmware does not extend, so any operating system can \
                 extend the registers of this bank to accepted values: {}. Enable the SHA-256 PCR bank in the firmware \
                 setup, or update the firmware",
                listed(named.collect(), self.unmeasured.len())
            );
            (False, reason::NOT_MEASURED, message)
        } else if is_complete {
            (True, reason::MEASURED, String::new())
        } else {
            let message =
                "not all machines have sent a quote since the controller started".to_owned();
            (Unknown, reason::PENDING, message)
        };
        ConditionReport {
            of: conditions::BOOT_MEASURED,
            holds,
            reason,
            message,
        }
    }
}

fn listed(mut named: Vec<String>, count: usize) -> String {
    let rest = count.saturating_sub(named.len());
    if rest > 0 {
        named.push(format!("{rest} more"));
    }
    named.join("; ")
}

/// The date, in UTC.
fn day(time: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.chars().take(10).collect()
}

#[cfg(test)]
mod tests;
