//! Tests of a controller that lacks some permissions.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::{Controllers, KubeadmBinding};
use node_attestation_core::crd::RevokedNodeCredentialsSpec;
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::ledger::Revocations;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::hardening::admission::{self, AdmissionSettings};
use node_attestation_runtime::hardening::tokens::Tokens;
use node_attestation_runtime::hardening::{HardeningError, bindings, revocation, service_ranges};

use crate::bed::Bed;
use crate::revocation::now;

#[test]
fn every_missing_permission_is_named_and_stops_the_call() {
    let bed = Bed::start(Controllers::None, &KubeadmBinding::ALL);
    let nobody = bed.cluster.client_cert_kubeconfig("nobody", None);
    let access = bed.run(ClusterAccess::from_kubeconfig(&nobody)).unwrap();
    let client = access.client();
    let admission = AdmissionSettings {
        attestors: BTreeSet::from([Provider::INSECURE]),
        exempt: BTreeSet::new(),
        enforced: true,
    };
    let list = Revocations::unread();
    let revoked = RevokedNodeCredentialsSpec::default();
    let wanted = BTreeSet::from([TokenId::parse("absent").unwrap()]);
    let mut tokens = Tokens::new(Duration::ZERO);

    let errors = [
        bed.run(bindings::scan(client)).err(),
        bed.run(admission::apply(client, &admission)).err(),
        bed.run(revocation::apply(client, &list, &revoked, now()))
            .err(),
        bed.run(tokens.keep(client, &wanted, now(), Duration::ZERO))
            .err(),
        bed.run(service_ranges::read(client)).err(),
    ];

    for (error, right) in errors.into_iter().zip([
        "list clusterrolebindings",
        "get validatingadmissionpolicies/node-attestation-requests",
        "get revokednodecredentials/node-attestation-controller",
        "get secrets/bootstrap-token-absent",
        "get services/kubernetes",
    ]) {
        let error = error.expect(right);
        assert!(matches!(error, HardeningError::Forbidden { .. }), "{error}");
        let said = error.to_string();
        assert!(
            said.starts_with(&format!("not allowed to {right}: ")),
            "{said}"
        );
    }
}
