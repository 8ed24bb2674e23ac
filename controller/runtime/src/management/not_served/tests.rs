use std::error::Error as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::{Adoption, KubeletAuthenticationSpec};
use node_attestation_core::signer::InvalidCa;
use node_attestation_core::testing::now;
use node_attestation_core::verifier::VerifierUnavailable;

use super::*;
use crate::capi::{
    CaOutOfTime, CaRefused, KubeconfigRefused, OwnAttestors, ca_secret, ca_secret_without_key,
};
use crate::cluster_check::{State, finding_about};
use crate::management::conditions::{ClusterPhase, status};
use crate::management::configuration::{CheckedSpec, InvalidSpec};
use crate::standalone::{StandaloneError, UnusableSettings};
use crate::watch::Unreadable;

fn authentication() -> KubeletAuthentication {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
    KubeletAuthentication::new("prod-1", spec)
}

fn cluster() -> Cluster {
    Cluster {
        uid: "1".to_owned(),
        paused: false,
        deleting: false,
        watch_filter: None,
        endpoint: None,
        service_ranges: Vec::new(),
        infrastructure: None,
        control_plane: None,
        attestors: OwnAttestors::Unset,
    }
}

/// Settings with an invalid audience, settings with an invalid combination, and settings with an invalid range.
fn invalid_specs() -> [KubeletAuthenticationSpec; 3] {
    let mut audience = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
    audience.audiences = vec!["a b".to_owned()];
    let mut combination = KubeletAuthenticationSpec::new("prod-1", &["insecure"]);
    combination.adoption = Some(Adoption::Allow);
    let mut range = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
    range.serving_address_ranges = vec!["everywhere".to_owned()];
    [audience, combination, range]
}

/// The number of examples. Each reason has one example.
const REASONS: usize = 19;

/// The number of the example for this reason. The match has no default arm, so each new reason requires an example.
fn number(why: &NotReady) -> usize {
    match why {
        NotReady::ClusterNotFound(_) => 0,
        NotReady::ClusterUnreadable { .. } => 1,
        NotReady::ClusterPaused => 2,
        NotReady::Paused => 3,
        NotReady::Misnamed(_) => 4,
        NotReady::KubeconfigNotFound(_) => 5,
        NotReady::KubeconfigRefused { .. } => 6,
        NotReady::KubeconfigUnreadable { .. } => 7,
        NotReady::CaNotFound(_) => 8,
        NotReady::CaRefused { .. } => 9,
        NotReady::CaUnreadable { .. } => 10,
        NotReady::SharedCa(_) => 11,
        NotReady::NoAttestor { .. } => 12,
        NotReady::Spec(InvalidSpec::Audience(_)) => 13,
        NotReady::Spec(InvalidSpec::Combination(_)) => 14,
        NotReady::Spec(InvalidSpec::ServingAddressRange(_)) => 15,
        NotReady::CaKeyNotFound(_) => 16,
        NotReady::TooManyClusters(_) => 17,
        NotReady::Broken => 18,
    }
}

fn examples() -> [NotReady; REASONS] {
    let name = || "prod-1".to_owned();
    let source = || Unreadable::because("tls.crt is not base64");
    let [audience, combination, range] = invalid_specs().map(|spec| {
        let invalid = CheckedSpec::of(&spec).unwrap_err();
        NotReady::Spec(invalid)
    });
    [
        NotReady::ClusterNotFound(name()),
        NotReady::ClusterUnreadable {
            name: name(),
            source: source(),
        },
        NotReady::ClusterPaused,
        NotReady::Paused,
        NotReady::Misnamed(name()),
        NotReady::KubeconfigNotFound(name()),
        NotReady::KubeconfigRefused {
            name: name(),
            source: KubeconfigRefused::NoClient,
        },
        NotReady::KubeconfigUnreadable {
            name: name(),
            source: source(),
        },
        NotReady::CaNotFound(name()),
        NotReady::CaRefused {
            name: name(),
            source: InvalidCa::KeyMismatch.into(),
        },
        NotReady::CaUnreadable {
            name: name(),
            source: source(),
        },
        NotReady::SharedCa(None),
        NotReady::NoAttestor {
            why: VerifierUnavailable::InsecureNotAllowed,
            availability: Box::new(Verifiers::default().availability()),
        },
        audience,
        combination,
        range,
        NotReady::CaKeyNotFound(name()),
        NotReady::TooManyClusters(NonZeroUsize::MIN),
        NotReady::Broken,
    ]
}

/// The reason for this CA, according to a command at this time.
fn explained(
    authentication: &KubeletAuthentication,
    ca: CaSecret<'_>,
    now: SystemTime,
) -> Option<String> {
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    not_served(authentication, Some(&cluster()), ca, &verifiers, now)
}

/// The error of a controller without a management cluster that has this fault in its files. `None` if it cannot have
/// the fault. The match has no default arm, so each new reason requires a decision.
fn standalone(why: &NotReady) -> Option<StandaloneError> {
    match why {
        NotReady::CaRefused {
            source: CaRefused::Invalid(source),
            ..
        } => Some(StandaloneError::Ca {
            cert: PathBuf::from("ca.crt"),
            key: PathBuf::from("ca.key"),
            source: *source,
        }),
        NotReady::NoAttestor { why, .. } => Some(why.clone().into()),
        NotReady::Spec(invalid) => Some(UnusableSettings::from(invalid.clone()).into()),
        NotReady::ClusterNotFound(_)
        | NotReady::ClusterUnreadable { .. }
        | NotReady::ClusterPaused
        | NotReady::Paused
        | NotReady::Misnamed(_)
        | NotReady::KubeconfigNotFound(_)
        | NotReady::KubeconfigRefused { .. }
        | NotReady::KubeconfigUnreadable { .. }
        | NotReady::CaNotFound(_)
        | NotReady::CaRefused { .. }
        | NotReady::CaUnreadable { .. }
        | NotReady::SharedCa(_)
        | NotReady::CaKeyNotFound(_)
        | NotReady::TooManyClusters(_)
        | NotReady::Broken => None,
    }
}

#[test]
fn commands_report_each_reason_of_the_controller() {
    let mut of_files = 0;
    for (expected, why) in examples().into_iter().enumerate() {
        assert_eq!(number(&why), expected);
        let words = format!("{}: {why}", why.reason());
        if let Some(error) = standalone(&why) {
            // The error names the files, and the condition names the Secret.
            let cause = error_chain(error.source().unwrap_or(&error));
            assert!(words.ends_with(&cause), "{words}: {cause}");
            of_files += 1;
        }
        let mut authentication = authentication();
        let phase = ClusterPhase::Stopped(why);
        authentication.status = Some(status(&authentication, &phase, now()));

        assert_eq!(reported(&authentication).as_deref(), Some(&*words));
        let explained = explained(&authentication, CaSecret::Unread, now());
        assert_eq!(explained.as_deref(), Some(&*words));
        let finding = (State::Fail, format!("not Ready, {words}"));
        assert_eq!(finding_about(authentication, explained), finding);
    }
    // The CA, the attestation providers, and three kinds of settings.
    assert_eq!(of_files, 5);
}

#[test]
fn the_check_of_a_cluster_waits_for_the_condition_after_the_cause_ends() {
    let of = |phase: Option<&ClusterPhase>, not_ready: Option<&str>| {
        let mut authentication = authentication();
        authentication.status = phase.map(|phase| status(&authentication, phase, now()));
        finding_about(authentication, not_ready.map(ToOwned::to_owned))
    };
    let stopped = ClusterPhase::Stopped(NotReady::Paused);

    let (state, finding) = of(Some(&stopped), None);
    assert_eq!(state, State::Warn, "{finding}");
    assert!(
        finding.contains("still False, Paused: annotation"),
        "{finding}"
    );
    let (state, finding) = of(Some(&stopped), Some("CANotFound: no CA"));
    assert_eq!(
        (state, &*finding),
        (State::Fail, "not Ready, CANotFound: no CA")
    );
    let (state, finding) = of(None, Some("CANotFound: no CA"));
    assert_eq!(state, State::Fail);
    assert!(
        finding.contains("no controller has processed it"),
        "{finding}"
    );
}

#[test]
fn the_current_objects_take_precedence_over_an_old_condition() {
    let mut authentication = authentication();
    let outdated = ClusterPhase::Stopped(NotReady::CaNotFound("prod-1-ca".to_owned()));
    authentication.status = Some(status(&authentication, &outdated, now()));
    let ca = ca_secret_without_key();
    let of = |authentication: &KubeletAuthentication, cluster: &Cluster| {
        let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
        let ca = CaSecret::Present(&ca);
        not_served(authentication, Some(cluster), ca, &verifiers, now()).unwrap()
    };
    let paused = Cluster {
        paused: true,
        ..cluster()
    };
    assert_eq!(
        of(&authentication, &paused),
        "Paused: the Cluster is paused"
    );

    let annotations = &mut authentication.metadata.annotations;
    annotations
        .get_or_insert_default()
        .insert("cluster.x-k8s.io/paused".to_owned(), String::new());
    assert_eq!(
        of(&authentication, &cluster()),
        "Paused: annotation cluster.x-k8s.io/paused is set"
    );

    authentication.spec.cluster_name = "prod-2".to_owned();
    assert!(of(&authentication, &cluster()).starts_with("Misnamed: the name must be prod-2"));
}

#[test]
fn commands_report_the_fault_of_the_present_ca_before_the_controller() {
    let valid = ca_secret();
    let mut mismatched = valid.clone();
    let key = ca_secret().data.unwrap().remove("tls.key").unwrap();
    mismatched
        .data
        .as_mut()
        .unwrap()
        .insert("tls.key".to_owned(), key);
    let empty = Secret::default();
    // The certificate expires in the year 4096.
    let late = UNIX_EPOCH + Duration::from_secs(70_000_000_000);
    let of = |ca: CaSecret<'_>, now: SystemTime| explained(&authentication(), ca, now);

    assert_eq!(of(CaSecret::Unread, now()), None);
    assert_eq!(of(CaSecret::Present(&valid), now()), None);
    for (ca, now, expected) in [
        (
            CaSecret::Absent,
            now(),
            "CANotFound: Secret prod-1-ca does not exist",
        ),
        (
            CaSecret::Present(&empty),
            now(),
            "CAInvalid: the CA in Secret prod-1-ca is not accepted: tls.crt is missing",
        ),
        (
            CaSecret::Present(&mismatched),
            now(),
            "CAKeyMismatch: the CA in Secret prod-1-ca is not accepted: ",
        ),
        (
            CaSecret::Present(&valid),
            late,
            "CAExpired: the CA certificate has expired: the controller cannot sign",
        ),
    ] {
        let told = of(ca, now).unwrap();
        assert!(told.starts_with(expected), "{told}");
    }
}

#[test]
fn a_ca_fault_in_the_condition_ends_with_a_valid_ca_that_has_its_key() {
    let name = || "prod-1-ca".to_owned();
    let refused = |source| NotReady::CaRefused {
        name: name(),
        source,
    };
    let (valid, without_key) = (ca_secret(), ca_secret_without_key());
    let after = |phase: ClusterPhase, ca: CaSecret<'_>| {
        let mut authentication = authentication();
        authentication.status = Some(status(&authentication, &phase, now()));
        let reported = reported(&authentication);
        assert!(reported.is_some());
        (explained(&authentication, ca, now()), reported)
    };
    for why in [
        NotReady::CaNotFound(name()),
        refused(CaRefused::NoCertificate),
        refused(InvalidCa::KeyMismatch.into()),
    ] {
        let phase = ClusterPhase::Stopped(why);
        assert_eq!(after(phase, CaSecret::Present(&valid)).0, None);
    }
    // An external signer can refuse the CA.
    let phase = ClusterPhase::Stopped(refused(CaRefused::NoCertificate));
    let (explained, reported) = after(phase, CaSecret::Present(&without_key));
    assert_eq!(explained, reported);
    // All other reasons remain.
    let phase = ClusterPhase::Stopped(NotReady::SharedCa(None));
    let (explained, reported) = after(phase, CaSecret::Present(&valid));
    assert_eq!(explained, reported);
    assert!(!is_of_ca(&explained.unwrap()));
    assert!(is_of_ca(&words(
        reason::CA_EXPIRED,
        &out_of_time(CaOutOfTime::Expired)
    )));
}
