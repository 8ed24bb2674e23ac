//! Tests of bindings that approve kubelets without a review.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::{Controllers, DEADLINE, KubeadmBinding};
use kubelet_authenticator_test_support::process::poll;
use node_attestation_runtime::hardening::auto_approve_audit::{self, AutoApprovePath};
use node_attestation_runtime::hardening::bindings::{self, Scan};

use crate::bed::{Bed, Request, STOCK, assert_done};

const NODECLIENT: &str = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";

/// A cluster in which kubeadm's tokens can only create requests. Each test adds a separate binding.
static ADMINISTERED: LazyLock<Bed> = LazyLock::new(|| {
    Bed::start(
        Controllers::Certificates,
        &[KubeadmBinding::KubeletBootstrap],
    )
});

fn scan(bed: &Bed) -> Scan {
    bed.run(bindings::scan(bed.client())).unwrap()
}

fn remove(bed: &Bed, found: &mut Scan) -> Vec<String> {
    let removed = bed.run(bindings::remove(bed.client(), found)).unwrap();
    assert!(removed.refusals.is_empty(), "{:?}", removed.refusals);
    removed.names
}

fn examine(bed: &Bed) -> Vec<AutoApprovePath> {
    bed.run(auto_approve_audit::examine(bed.client(), &scan(bed)))
        .unwrap()
}

/// The descriptions of the auto-approval paths that are open because of this binding.
fn ways_by(bed: &Bed, binding: &str) -> Vec<String> {
    let words = format!("ClusterRoleBinding {binding} ");
    let ways = examine(bed).into_iter().map(|way| way.to_string());
    ways.filter(|way| way.contains(&words)).collect()
}

#[test]
fn an_unmodified_cluster_issues_any_node_name_for_a_bootstrap_token() {
    let token = STOCK.token_holder("anyone");
    let request = Request::built_in("node-csr-anyone", "control-plane-1");
    assert_done(&request.file(&token));
    STOCK.wait_until_issued("node-csr-anyone");
    let open = auto_approve_audit::message(&examine(&STOCK));
    assert!(
        open.contains(
            "group system:bootstrappers:kubeadm:default-node-token gets a certificate for any node \
             without evidence, through ClusterRoleBinding kubeadm:node-autoapprove-bootstrap"
        ),
        "{open}"
    );

    let bed = Bed::start(Controllers::Certificates, &KubeadmBinding::ALL);
    let mut found = scan(&bed);
    let removed = remove(&bed, &mut found);

    assert_eq!(
        removed,
        [
            "kubeadm:node-autoapprove-bootstrap",
            "kubeadm:node-autoapprove-certificate-rotation"
        ]
    );
    let closure = bed
        .run(auto_approve_audit::examine(bed.client(), &found))
        .unwrap();
    assert_eq!(closure, []);
    let token = bed.token_holder("anyone");
    assert_done(&request.file(&token));
    assert_is_left_alone(&bed, "node-csr-anyone");
}

/// Asserts from kube-controller-manager's log that it has processed the request without an approval.
#[track_caller]
fn assert_is_left_alone(bed: &Bed, name: &str) {
    let manager = bed.cluster.controller_manager().unwrap();
    let refused = poll(DEADLINE, || {
        let log = manager.log().text();
        let mut lines = log.lines();
        lines
            .any(|line| line.contains(name) && line.contains("was not approved"))
            .then_some(())
    });
    assert!(refused.is_some(), "{}", manager.log());
    assert!(bed.request(name)["status"]["conditions"].is_null());
}

#[test]
fn a_stolen_node_certificate_renews_until_the_bindings_are_removed() {
    let thief = STOCK.node("stolen");
    for name in ["stolen-1", "stolen-2"] {
        assert_done(&Request::built_in(name, "stolen").file(&thief));
        STOCK.wait_until_issued(name);
    }
    let open = auto_approve_audit::message(&examine(&STOCK));
    assert!(
        open.contains("group system:nodes gets renewals of node certificates without evidence"),
        "{open}"
    );

    let bed = Bed::start(Controllers::Certificates, &KubeadmBinding::ALL);
    remove(&bed, &mut scan(&bed));

    assert_eq!(examine(&bed), []);
    assert_done(&Request::built_in("stolen-3", "stolen").file(&bed.node("stolen")));
    assert_is_left_alone(&bed, "stolen-3");
}

#[test]
fn a_binding_with_another_name_approves_a_bootstrap_token() {
    // The shared cluster is not used, because this binding approves the requests of every bootstrap token.
    let bed = &Bed::start(
        Controllers::Certificates,
        &[KubeadmBinding::KubeletBootstrap],
    );
    bed.bind("our-nodes", NODECLIENT, "Group", "system:bootstrappers");
    let token = bed.token_holder("othern");
    assert_done(&Request::built_in("other-name", "victim").file(&token));
    bed.wait_until_issued("other-name");

    let mut found = scan(bed);
    assert!(remove(bed, &mut found).is_empty());
    let ways = ways_by(bed, "our-nodes");
    assert_eq!(
        ways,
        [format!(
            "group system:bootstrappers gets a certificate for any node without evidence, through \
             ClusterRoleBinding our-nodes to {NODECLIENT} (delete the binding, or remove this subject from the \
             binding)"
        )]
    );

    bed.unbind("our-nodes");
    assert_eq!(ways_by(bed, "our-nodes"), Vec::<String>::new());
}

#[test]
fn a_binding_for_a_single_bootstrap_token_user_is_reported() {
    let bed = &*ADMINISTERED;
    bed.bind("one-user", NODECLIENT, "User", "system:bootstrap:single");
    let token = bed.token_holder("single");
    assert_done(&Request::built_in("one-user", "victim").file(&token));
    bed.wait_until_issued("one-user");
    let review = [
        "auth",
        "can-i",
        "create",
        "certificatesigningrequests",
        "--subresource=nodeclient",
        "--as=system:probe",
        "--as-group=system:bootstrappers",
        "--as-group=system:authenticated",
    ];
    assert!(!bed.cluster.kubectl().run(review).status.success());

    let ways = ways_by(bed, "one-user");

    assert_eq!(ways.len(), 1);
    assert!(ways[0].starts_with("user system:bootstrap:single gets a certificate for any node"));
    bed.unbind("one-user");
    assert_eq!(ways_by(bed, "one-user"), Vec::<String>::new());
}

#[test]
fn a_custom_role_that_auto_approves_is_reported() {
    let bed = &*ADMINISTERED;
    bed.cluster.kubectl().ok([
        "create",
        "clusterrole",
        "ours",
        "--verb=create",
        "--resource=certificatesigningrequests.certificates.k8s.io/nodeclient",
    ]);
    bed.bind("own-role", "ours", "Group", "system:bootstrappers:of-ours");
    assert_eq!(ways_by(bed, "own-role").len(), 1);

    bed.unbind("own-role");
    assert_eq!(ways_by(bed, "own-role"), Vec::<String>::new());
}

#[test]
fn kubeadm_bindings_are_removed_again_after_a_rewrite() {
    let bed = Bed::start(Controllers::None, &[]);
    for round in 0..2 {
        bed.cluster.kubeadm_bootstrap_token_phase();
        let mut found = scan(&bed);
        assert_eq!(found.open.len(), 2, "{round}: {:?}", found.open);

        assert_eq!(remove(&bed, &mut found).len(), 2);

        assert_eq!(examine(&bed), []);
        // The bindings that the project's nodes need remain.
        let kubectl = bed.cluster.kubectl();
        kubectl.ok(["get", "clusterrolebinding", "kubeadm:kubelet-bootstrap"]);
    }
}

#[test]
fn a_modified_kubeadm_binding_is_reported_and_kept() {
    let bed = &*ADMINISTERED;
    const NAME: &str = "kubeadm:node-autoapprove-bootstrap";
    bed.bind(NAME, NODECLIENT, "Group", "system:bootstrappers:mine");

    let mut found = scan(bed);

    assert!(remove(bed, &mut found).is_empty());
    assert_eq!(ways_by(bed, NAME).len(), 1);
    bed.unbind(NAME);
}
