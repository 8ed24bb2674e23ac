use std::time::UNIX_EPOCH;

use kubelet_authenticator_test_support::ek_ca::vendors;
use node_attestation_core::crd::{PcrPolicy, PcrSet, TpmSettings};
use node_attestation_core::time::since_epoch;

use super::*;
use crate::fixture::{machine, noon};

const DAY: Duration = Duration::from_hours(24);

/// A policy that requires authorities with these expiry times.
fn requiring(ends: &[SystemTime]) -> TpmPolicy {
    let public_key = machine().ek_spki();
    let authorities = ends
        .iter()
        .map(|end| vendors::ending(&public_key, *end, *end).root_pem());
    let mut settings = TpmSettings::default();
    settings.endorsement_keys.require_ca = authorities.collect();
    TpmPolicy::new(&settings).unwrap()
}

fn measured_policy() -> TpmPolicy {
    let settings = TpmSettings {
        pcr_policy: PcrPolicy {
            allowed: vec![PcrSet::from([("7".to_owned(), "1".repeat(64))])],
            ..PcrPolicy::default()
        },
        ..TpmSettings::default()
    };
    TpmPolicy::new(&settings).unwrap()
}

fn end(at: SystemTime, subject: &str) -> Expiring {
    Expiring {
        at,
        subject: subject.to_owned(),
    }
}

fn far() -> SystemTime {
    noon() + 365 * DAY
}

/// This time on both clocks: the wall clock and the monotonic clock.
fn both(now: SystemTime) -> (SystemTime, Duration) {
    (now, since_epoch(now))
}

/// The status, the reason and the message of a condition.
fn said(
    observations: &Observations,
    policy: &TpmPolicy,
    of: &str,
    now: SystemTime,
) -> (ConditionStatus, &'static str, String) {
    let findings = observations.findings(policy, both(now));
    let mut conditions = findings.conditions.into_iter();
    let found = conditions.find(|one| one.of == of).unwrap();
    (found.holds, found.reason, found.message)
}

const CERTIFICATES: &str = conditions::ENDORSEMENT_CERTIFICATES_VALID;
const BOOTS: &str = conditions::BOOT_MEASURED;

#[test]
fn a_ca_that_expires_within_90_days_is_reported_with_its_date() {
    let observations = Observations::default();
    let second = Duration::from_secs(1);
    let expires = noon() + 90 * DAY;
    let policy = requiring(&[far(), expires]);
    let now = |before: Duration| expires - 90 * DAY - before;

    assert_eq!(
        observations.findings(&policy, both(now(second))).expiring,
        None
    );

    let findings = observations.findings(&policy, both(now(Duration::ZERO)));
    assert_eq!(findings.expiring, Some(end(expires, "CN=an ending root")));
    let (holds, reason, message) = said(&observations, &policy, CERTIFICATES, now(Duration::ZERO));
    assert_eq!(
        (holds, reason),
        (ConditionStatus::False, "CertificateExpires")
    );
    assert_eq!(
        message,
        "\"CN=an ending root\" (requireCA) expires on 2026-04-01. From then on, the controller denies the affected \
         machines: add a certificate of the CA with a later expiry, or remove requireCA"
    );
    let (_, reason, message) = said(&observations, &policy, CERTIFICATES, expires + second);
    assert_eq!(reason, "CertificateExpired");
    assert!(
        message.starts_with("\"CN=an ending root\" (requireCA) expired on 2026-04-01."),
        "{message}"
    );
}

#[test]
fn a_ca_is_reported_as_expired_only_after_its_last_second() {
    let observations = Observations::default();
    let expires = noon() + 90 * DAY;
    let policy = requiring(&[expires]);
    for (now, reason, verb) in [
        (expires, "CertificateExpires", "expires"),
        (
            expires + Duration::from_secs(1),
            "CertificateExpired",
            "expired",
        ),
    ] {
        let (_, found, message) = said(&observations, &policy, CERTIFICATES, now);

        assert_eq!(found, reason);
        let start = format!("\"CN=an ending root\" (requireCA) {verb} on 2026-04-01.");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn the_earliest_certificate_expiry_is_reported() {
    let observations = Observations::default();
    let policy = requiring(&[noon() + 80 * DAY]);
    for (machine, days) in [
        ("m1", 70),
        ("m2", 60),
        ("m3", 91),
        ("m4", 75),
        ("m5", 76),
        ("m6", 77),
        ("m7", 78),
    ] {
        let subject = format!("CN={machine}");
        observations.certificate(machine, end(noon() + days * DAY, &subject), both(noon()));
    }

    let findings = observations.findings(&policy, both(noon()));

    assert_eq!(findings.expiring, Some(end(noon() + 60 * DAY, "CN=m2")));
    let message = &findings.conditions[0].message;
    assert!(
        message.starts_with("\"CN=m2\" (Machine m2) expires on 2026-03-02; \"CN=m1\" (Machine m1) expires on 2026-03-12; "),
        "{message}"
    );
    assert!(message.contains("; 2 more. "), "{message}");
    assert!(!message.contains("m3"), "{message}");
}

#[test]
fn replaced_and_unseen_certificates_are_not_reported_as_expiring() {
    let observations = Observations::default();
    let policy = requiring(&[far()]);
    let soon = end(noon() + 30 * DAY, "CN=m1");
    observations.certificate("m1", soon.clone(), both(noon()));
    assert_eq!(
        observations.findings(&policy, both(noon())).expiring,
        Some(soon.clone())
    );

    observations.certificate("m1", end(far(), "CN=m1"), both(noon()));
    assert_eq!(observations.findings(&policy, both(noon())).expiring, None);

    observations.certificate("m1", soon.clone(), both(noon()));
    let last = noon() + 8 * DAY;
    assert_eq!(
        observations.findings(&policy, both(last)).expiring,
        Some(soon)
    );
    let gone = last + Duration::from_secs(1);
    assert_eq!(observations.findings(&policy, both(gone)).expiring, None);
}

#[test]
fn observations_are_unknown_until_each_machine_has_renewed() {
    let observations = Observations::default();
    let policy = requiring(&[far()]);
    for (of, expected) in [(CERTIFICATES, "CertificatesValid"), (BOOTS, "Measured")] {
        let complete = noon() + Duration::from_hours(36);
        for now in [noon(), complete - Duration::from_secs(1)] {
            let (holds, reason, _) = said(&observations, &policy, of, now);
            assert_eq!((holds, reason), (ConditionStatus::Unknown, "Pending"));
        }
        let (holds, reason, _) = said(&observations, &policy, of, complete);
        assert_eq!((holds, reason), (ConditionStatus::True, expected));
    }
}

#[test]
fn a_wall_clock_jump_does_not_change_the_observed_machines() {
    let (all_renew, kept) = (Duration::from_hours(36), 8 * DAY);
    for clock in [noon() + 365 * DAY, noon() - 365 * DAY] {
        let observations = Observations::default();
        let policy = requiring(&[]);
        let reason_at = |clock: SystemTime, elapsed: Duration| {
            let findings = observations.findings(&policy, (clock, elapsed));
            let mut conditions = findings.conditions.into_iter();
            let found = conditions.find(|one| one.of == BOOTS).unwrap();
            (found.reason, findings.unmeasured)
        };
        let begin = Duration::from_secs(1);
        assert_eq!(reason_at(noon(), begin), ("Pending", Some(0)));

        assert_eq!(reason_at(clock, begin), ("Pending", Some(0)));
        assert_eq!(reason_at(clock, begin + all_renew), ("Measured", Some(0)));

        observations.boot("m1", vec![0], begin);
        assert_eq!(reason_at(clock, begin + kept), ("NotMeasured", Some(1)));
        let later = begin + kept + Duration::from_secs(1);
        assert_eq!(reason_at(clock, later), ("Measured", Some(0)));
    }
}

#[test]
fn conditions_that_do_not_apply_to_the_settings_are_true() {
    let observations = Observations::default();
    let nothing_required = requiring(&[]);
    let (holds, reason, _) = said(&observations, &nothing_required, CERTIFICATES, noon());
    assert_eq!((holds, reason), (ConditionStatus::True, "NotApplicable"));

    let policy = measured_policy();
    observations.boot("m1", vec![0], since_epoch(noon()));
    let (holds, reason, _) = said(&observations, &policy, BOOTS, noon());
    assert_eq!((holds, reason), (ConditionStatus::True, "NotApplicable"));
    assert_eq!(
        observations.findings(&policy, both(noon())).unmeasured,
        None
    );
}

#[test]
fn machines_with_unmeasured_firmware_are_counted_and_named() {
    let observations = Observations::default();
    let policy = requiring(&[]);
    assert_eq!(
        observations.findings(&policy, both(noon())).unmeasured,
        Some(0)
    );
    for machine in 1..=7 {
        observations.boot(&format!("m{machine}"), vec![0, 4], since_epoch(noon()));
    }

    let (holds, reason, message) = said(&observations, &policy, BOOTS, noon());
    assert_eq!((holds, reason), (ConditionStatus::False, "NotMeasured"));
    assert!(message.contains(": m1 (registers 0, 4); m2 "), "{message}");
    assert!(message.contains("; 2 more. "), "{message}");
    assert_eq!(
        observations.findings(&policy, both(noon())).unmeasured,
        Some(7)
    );
    observations.boot("m1", vec![], since_epoch(noon()));
    assert_eq!(
        observations.findings(&policy, both(noon())).unmeasured,
        Some(6)
    );
}

#[test]
fn the_number_of_remembered_machines_has_a_limit() {
    let observations = Observations::default();
    for machine in 0..=4096 {
        observations.boot(&machine.to_string(), vec![0], since_epoch(UNIX_EPOCH));
    }

    let findings = observations.findings(&requiring(&[]), both(UNIX_EPOCH));

    assert_eq!(findings.unmeasured, Some(4096));
    // The controller still records observations about a machine that it already knows.
    observations.boot("7", vec![], since_epoch(UNIX_EPOCH));
    let findings = observations.findings(&requiring(&[]), both(UNIX_EPOCH));
    assert_eq!(findings.unmeasured, Some(4095));
}

#[test]
fn machines_of_one_namespace_use_limited_memory_in_all_its_clusters() {
    let count = |namespace: &str| {
        let observations = Observations::of_namespace(namespace);
        for machine in 0..4096 {
            observations.boot(&machine.to_string(), vec![0], since_epoch(UNIX_EPOCH));
        }
        let findings = observations.findings(&requiring(&[]), both(UNIX_EPOCH));
        (observations, findings.unmeasured.unwrap())
    };

    let mut clusters: Vec<_> = (0..6).map(|_| count("tenant-of-many")).collect();

    // The namespace has space for 16,384 machines. After that, each cluster observes 8 machines.
    let counts: Vec<usize> = clusters.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [4096, 4096, 4096, 4096, 8, 8]);
    assert_eq!(count("another-tenant").1, 4096);
    // A deleted cluster frees space.
    clusters.remove(0);
    assert_eq!(count("tenant-of-many").1, 4080);
}
