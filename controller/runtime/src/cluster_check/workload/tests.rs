use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use serde_json::json;

use super::super::State;
use super::*;
use crate::client::ClusterAccess;

/// Without the permission for one of these signers, the controller cannot deny or sign requests for that signer.
#[tokio::test]
async fn the_permissions_on_all_signers_of_the_controller_are_checked() {
    let access = ClusterAccess::in_memory(|_| async { Response::new(Full::new(Bytes::new())) });
    let spec = KubeletAuthenticationSpec::new("prod-1", &["aws", "insecure"]);
    let workload = Workload {
        client: access.client(),
        spec: &spec,
        unavailable: None,
        signs_serving: false,
    };

    let expected = [
        Provider::AWS.client_signer(),
        Provider::INSECURE.client_signer(),
        Provider::AWS.serving_signer(),
        BUILT_IN_CLIENT_SIGNER.to_owned(),
        BUILT_IN_SERVING_SIGNER.to_owned(),
    ];
    assert_eq!(workload.signers(), expected);
}

#[tokio::test]
async fn only_nodes_without_an_identity_or_exemption_are_a_warning() {
    let access = ClusterAccess::in_memory(|_| async {
        let list = r#"{"metadata": {}, "items": [
            {"metadata": {"name": "cp-1", "labels": {"node-role.kubernetes.io/control-plane": ""}}},
            {"metadata": {"name": "windows-1"}}, {"metadata": {"name": "worker-1"}}
        ]}"#;
        Response::new(Full::new(Bytes::from(list)))
    });
    let recorded = BTreeSet::from(["worker-1".to_owned()]);
    let cases: [(&[&str], _, _); 5] = [
        (&[], State::Warn, "identity: cp-1, windows-1"),
        (&["ControlPlane"], State::Warn, "identity: windows-1"),
        (&["windows-1"], State::Warn, "identity: cp-1"),
        (
            &["ControlPlane", "windows-1"],
            State::Pass,
            "3; exempt Nodes without a node identity: cp-1, windows-1",
        ),
        (
            &["cp-1", "windows-1"],
            State::Pass,
            "3; exempt Nodes without a node identity: cp-1, windows-1",
        ),
    ];
    for (exempt, state, words) in cases {
        let spec = KubeletAuthenticationSpec {
            exempt_nodes: Some(exempt.iter().map(ToString::to_string).collect()),
            ..KubeletAuthenticationSpec::new("prod-1", &["aws"])
        };
        let workload = Workload {
            client: access.client(),
            spec: &spec,
            unavailable: None,
            signs_serving: false,
        };

        let finding = workload.nodes(Some(&recorded)).await;

        assert_eq!(finding.state, state, "{finding:?}");
        assert!(finding.what.contains(words), "{finding:?}");
    }
}

#[tokio::test]
async fn a_check_keeps_a_limited_number_of_node_names() {
    let page = |first: usize, count: usize| {
        let name = |number: usize| format!(r#"{{"metadata": {{"name": "n{number}"}}}}"#);
        let items: Vec<_> = (first..first + count).map(name).collect();
        format!(
            r#"{{"metadata": {{"continue": "{}"}}, "items": [{}]}}"#,
            if count == 500 { "next" } else { "" },
            items.join(",")
        )
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let access = ClusterAccess::in_memory(move |request| {
        let is_of_nodes = request.uri().path().ends_with("/nodes");
        let list = match asked.fetch_add(usize::from(is_of_nodes), Ordering::Relaxed) {
            _ if !is_of_nodes => r#"{"metadata": {}, "items": []}"#.to_owned(),
            number if number * 500 < MAX_NAMES => page(number * 500, 500),
            _ => page(MAX_NAMES, 10),
        };
        async move { Response::new(Full::new(Bytes::from(list))) }
    });
    let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
    let workload = Workload {
        client: access.client(),
        spec: &spec,
        unavailable: None,
        signs_serving: false,
    };

    let finding = workload.nodes(Some(&BTreeSet::new())).await;

    let words = "identity: n0, n1, n2, n3, n4 and 9995 more; ";
    assert!(finding.what.contains(words), "{finding:?}");
}

#[test]
fn the_expiry_of_nodes_without_an_identity_is_shown_if_it_is_known() {
    let nodes = ["n1", "n2"].map(str::to_owned);
    let known = |node: &str| BTreeMap::from([(node.to_owned(), SystemTime::UNIX_EPOCH)]);

    assert_eq!(
        expiry_of(&nodes, &known("n2")),
        "their certificates expire: n1 unknown, n2 1970-01-01T00:00:00Z"
    );
    for known in [known("n3"), BTreeMap::new()] {
        let expiry = expiry_of(&nodes, &known);
        assert_eq!(expiry, "the expiry of their certificates is unknown");
    }
}

#[test]
fn a_cluster_without_enforcement_is_a_warning() {
    for (is_to_be_enforced, words) in [
        (true, "not enforced yet (autoApproveBindings: Remove)"),
        (false, "not enforced (autoApproveBindings: Report)"),
    ] {
        let finding = enforcement(false, is_to_be_enforced);

        assert_eq!(finding.state, State::Warn, "{finding:?}");
        assert!(finding.what.ends_with(words), "{finding:?}");
        assert!(!finding.cure.is_empty(), "{finding:?}");
    }
    for is_to_be_enforced in [true, false] {
        assert_eq!(enforcement(true, is_to_be_enforced).state, State::Pass);
    }
}

#[tokio::test]
async fn only_a_user_in_the_group_of_administrators_is_a_warning() {
    const MEMBER: &str =
        "the kubeconfig's user me is in the group system:masters, which has all permissions";
    const OTHER: &str = "me is not in the group system:masters";
    for (group, state, what) in [
        ("system:masters", State::Warn, MEMBER),
        ("system:authenticated", State::Pass, OTHER),
        ("our:system:masters", State::Pass, OTHER),
    ] {
        let access = ClusterAccess::in_memory(move |_| async move {
            let review = json!({
                "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {},
                "status": {"userInfo": {"username": "me", "groups": ["a", group]}},
            });
            Response::new(Full::new(Bytes::from(review.to_string())))
        });
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let workload = Workload {
            client: access.client(),
            spec: &spec,
            unavailable: None,
            signs_serving: false,
        };

        let finding = workload.user().await;

        assert_eq!((finding.state, &*finding.what), (state, what), "{group}");
    }
}

#[tokio::test]
async fn another_signer_is_a_warning_only_if_the_controller_signs() {
    const ALONE: &str = "no other approver of serving certificates was found";
    const SIGNED: &str = "this controller signs serving certificates; another signer signed 1 requests for \
                          kubernetes.io/kubelet-serving in the last hour";
    const NOBODY: &str = "this controller signs serving certificates; no other approver or signer of serving \
                          certificates was found";
    for (signs_serving, certificate, state, what) in [
        (false, json!("eA=="), State::Pass, ALONE),
        (true, json!("eA=="), State::Warn, SIGNED),
        (true, json!(null), State::Pass, NOBODY),
    ] {
        let access = ClusterAccess::in_memory(move |request| {
            let approval = json!({
                "type": "Approved", "status": "True", "reason": "ServingNamesCorroborated",
            });
            let signed = json!({
                "metadata": {"name": "csr", "uid": "uid"},
                "spec": {"request": "", "signerName": BUILT_IN_SERVING_SIGNER},
                "status": {"conditions": [approval], "certificate": certificate},
            });
            let is_of_requests = request
                .uri()
                .path()
                .ends_with("/certificatesigningrequests");
            let items = if is_of_requests {
                vec![signed]
            } else {
                Vec::new()
            };
            let list = json!({"metadata": {}, "items": items}).to_string();
            async move { Response::new(Full::new(Bytes::from(list))) }
        });
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let workload = Workload {
            client: access.client(),
            spec: &spec,
            unavailable: None,
            signs_serving,
        };

        let finding = workload.approvers().await;

        assert_eq!(finding.state, state, "{finding:?}");
        assert_eq!(finding.what, what);
    }
}
