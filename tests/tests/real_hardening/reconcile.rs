//! All parts at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::{Controllers, DEADLINE, KubeadmBinding};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Application, Machine, Setup};
use kubelet_authenticator_tests::program;
use node_attestation_core::crd::AutoApproveBindings;
use node_attestation_core::identifiers::{RecordUid, TokenId};
use node_attestation_core::ledger::RevokedGenerations;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::hardening::admission::{Settings, Signing};
use node_attestation_runtime::hardening::auto_approve_audit::{AutoApprovePath, Closure};
use node_attestation_runtime::hardening::bindings::KubeadmBinding as Removed;
use node_attestation_runtime::hardening::{ApplyOutcome, HardeningError};
use rustix::process::Signal;

use crate::bed::{Bed, Request, assert_done, assert_refused};
use crate::parts::{Desired, Hardening};

/// Any moment: the tests have no other clock.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(60 * 365 * 24)
}

fn later() -> SystemTime {
    now() + Duration::from_hours(24)
}

fn desired(auto_approve_bindings: AutoApproveBindings) -> Desired {
    let revoked = RevokedGenerations {
        lowest_valid: 2,
        until: later(),
    };
    Desired {
        auto_approve_bindings,
        admission: Settings {
            attestors: BTreeSet::from([Provider::INSECURE]),
            signing: Signing::Ours,
            built_in_renewal: BTreeSet::new(),
            enforced: true,
        },
        revoked: BTreeMap::from([(RecordUid::new([1; 16]), revoked)]),
        tokens: BTreeMap::from([(TokenId::parse("absent").unwrap(), later())]),
    }
}

#[test]
fn a_stock_cluster_is_hardened_and_our_nodes_join_with_the_rights_of_the_manifest() {
    const MACHINE: Machine = Machine::new("ours", "ourown");
    let bed = Bed::start(Controllers::Certificates, &KubeadmBinding::ALL);
    let mut hardening = Hardening::new(bed.client().clone(), Duration::from_mins(10));
    let mut reconcile = |about| bed.run(hardening.reconcile(&desired(about), now()));

    let reported = reconcile(AutoApproveBindings::Report);
    assert_eq!(reported.errors().count(), 0, "{reported:?}");
    assert_eq!(reported.removed.as_ref().unwrap(), &[]);
    assert_eq!(reported.admission.as_ref().unwrap(), &ApplyOutcome::Made);
    let Closure::Open { ways } = reported.closure.unwrap() else {
        panic!("kubeadm's bindings were not found");
    };
    let by_kubeadm = |way: &AutoApprovePath| matches!(way, AutoApprovePath::Binding(open) if open.kubeadm.is_some());
    assert!(ways.iter().all(by_kubeadm), "{ways:?}");

    let removed = reconcile(AutoApproveBindings::Remove);
    assert_eq!(removed.errors().count(), 0, "{removed:?}");
    assert_eq!(
        removed.removed.unwrap(),
        [Removed::Bootstrap, Removed::Rotation]
    );
    assert_eq!(removed.closure.unwrap(), Closure::Closed);
    assert_eq!(removed.revocation.unwrap().listed, 1);
    assert_eq!(removed.tokens.unwrap().missing.len(), 1);

    let again = reconcile(AutoApproveBindings::Remove);
    assert_eq!(again.admission.unwrap(), ApplyOutcome::Unchanged);
    assert_eq!(again.removed.unwrap(), []);

    let program = program("node-attestation-controller");
    let ca = (bed.cluster.ca_cert_path(), bed.cluster.ca_key_path());
    let setup = Setup::new(&program, &bed.controller, (&ca.0, &ca.1), &[MACHINE]);
    let mut controller = setup.args(&["--allow-insecure"]).start();
    let token = bed.token_holder(MACHINE.token);
    let application = Application::insecure(MACHINE);
    token.apply_object(&application.to_json());
    bed.wait_until_issued(&application.name());
    controller.wait_for_line("the API server answers", |_| true);
    let complaints = controller.lines();
    assert!(
        complaints
            .iter()
            .all(|line| line["fields"]["right"].is_null())
    );
    bed.wait_until_confined(true);
    assert_refused(
        &Request::built_in("node-csr-stock", MACHINE.name).file(&token),
        "denied request",
    );
}

#[test]
fn every_right_that_is_missing_is_named_and_nothing_is_found_without_it() {
    let bed = Bed::start(Controllers::None, &KubeadmBinding::ALL);
    let nobody = bed.cluster.client_cert_kubeconfig("nobody", None);
    let access = bed.run(ClusterAccess::from_kubeconfig(&nobody)).unwrap();
    let mut hardening = Hardening::new(access.client().clone(), Duration::from_mins(10));

    let desired = desired(AutoApproveBindings::Remove);
    let findings = bed.run(hardening.reconcile(&desired, now()));

    let words: Vec<_> = findings
        .errors()
        .map(|(part, error)| {
            assert!(matches!(error, HardeningError::Forbidden { .. }), "{error}");
            let error = error.to_string();
            let right = error.split_once(": ").unwrap().0.to_owned();
            (part, right)
        })
        .collect();
    let words: Vec<_> = words
        .iter()
        .map(|(part, right)| (*part, right.as_str()))
        .collect();
    assert_eq!(
        words,
        [
            ("closure", "not allowed to list clusterrolebindings"),
            (
                "admission",
                "not allowed to get validatingadmissionpolicies/node-attestation-requests"
            ),
            (
                "revocation",
                "not allowed to get revokednodecredentials/node-attestation-controller"
            ),
            (
                "tokens",
                "not allowed to get secrets/bootstrap-token-absent"
            ),
        ]
    );
}

#[test]
fn an_api_server_that_is_away_is_an_outage_and_is_hardened_when_it_is_back() {
    let mut bed = Bed::start(Controllers::None, &KubeadmBinding::ALL);
    let client = bed.client().clone();
    let mut hardening = Hardening::new(client, Duration::from_mins(10));
    let desired = desired(AutoApproveBindings::Remove);
    bed.cluster.apiserver().signal(Signal::KILL);

    let findings = bed.run(hardening.reconcile(&desired, now()));

    assert_eq!(findings.errors().count(), 4, "{findings:?}");
    for (part, error) in findings.errors() {
        assert!(
            matches!(
                error,
                HardeningError::Unavailable { .. } | HardeningError::Deadline { .. }
            ),
            "{part}: {error}"
        );
    }
    bed.cluster.restart_apiserver();
    let back = poll(DEADLINE, || {
        let findings = bed.run(hardening.reconcile(&desired, now()));
        (findings.errors().count() == 0).then_some(findings)
    });
    assert_eq!(back.unwrap().closure.unwrap(), Closure::Closed);
    assert_done(&bed.cluster.kubectl().run(["get", "crd"]));
}
