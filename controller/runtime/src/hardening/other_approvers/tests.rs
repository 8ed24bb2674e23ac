use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::client::ClusterAccess;

/// A request with this approval.
fn approved(reason: &str) -> Value {
    json!({
        "metadata": {"name": "csr", "uid": "uid"},
        "spec": {"request": "", "signerName": BUILT_IN_SERVING_SIGNER},
        "status": {"conditions": [{"type": "Approved", "status": "True", "reason": reason}]},
    })
}

fn noted(reasons: &[&str]) -> OtherApprovers {
    let mut found = OtherApprovers::default();
    for reason in reasons {
        found.note(&serde_json::from_value(approved(reason)).unwrap());
    }
    found
}

fn rule(resource: &str, verb: &str, names: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec!["certificates.k8s.io".to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: vec![verb.to_owned()],
        resource_names: Some(names.iter().map(ToString::to_string).collect()),
        ..PolicyRule::default()
    }
}

fn role(name: &str, rule: &PolicyRule) -> Value {
    json!({"metadata": {"name": name}, "rules": [rule]})
}

fn binding(name: &str, role: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "approver"}],
    })
}

/// The approvers in a cluster with these requests, roles and bindings. Without roles, the API server forbids the list
/// of roles.
async fn read_from(
    requests: Vec<Value>,
    roles: Option<Vec<Value>>,
    bindings: Vec<Value>,
) -> OtherApprovers {
    try_read_from(requests, roles, bindings).await.unwrap()
}

/// Like [`read_from`], but also returns the error.
async fn try_read_from(
    requests: Vec<Value>,
    roles: Option<Vec<Value>>,
    bindings: Vec<Value>,
) -> Result<OtherApprovers, HardeningError> {
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let items = match path.rsplit('/').next().unwrap() {
            "certificatesigningrequests" => Some(requests.clone()),
            "clusterroles" => roles.clone(),
            "clusterrolebindings" => Some(bindings.clone()),
            "selfsubjectreviews" => None,
            other => panic!("{other}"),
        };
        let (code, body): (u16, Value) = match items {
            Some(items) => (200, json!({"metadata": {}, "items": items})),
            None => (
                403,
                json!({
                    "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                    "message": "forbidden",
                }),
            ),
        };
        async move {
            let body = Full::new(Bytes::from(body.to_string()));
            Response::builder().status(code).body(body).unwrap()
        }
    });
    read(access.client()).await
}

#[test]
fn only_the_right_to_approve_the_serving_signer_counts() {
    for (rule, expected) in [
        (rule("signers", "approve", &[]), true),
        (rule("signers", "approve", &[BUILT_IN_SERVING_SIGNER]), true),
        (rule("signers", "approve", &["kubernetes.io/*"]), true),
        (rule("signers", "*", &[]), true),
        (rule("*", "approve", &[]), true),
        (rule("signers", "sign", &[]), false),
        (rule("certificatesigningrequests", "approve", &[]), false),
        (
            rule(
                "signers",
                "approve",
                &["kubernetes.io/kube-apiserver-client"],
            ),
            false,
        ),
        (rule("signers", "approve", &["example.org/*"]), false),
    ] {
        assert_eq!(permits(std::slice::from_ref(&rule)), expected, "{rule:?}");
    }
}

#[test]
fn the_approvals_of_this_controller_do_not_count() {
    assert!(noted(&["ServingNamesCorroborated"]).is_empty());
    let mut pending = approved("x");
    pending["status"]["conditions"][0]["type"] = json!("Denied");
    let mut found = OtherApprovers::default();
    found.note(&serde_json::from_value(pending).unwrap());
    assert!(found.is_empty());

    let found = noted(&["KubectlApprove", "KubectlApprove", ""]);

    let expected = [("KubectlApprove".to_owned(), 2), (NONE.to_owned(), 1)];
    assert_eq!(found.approved, BTreeMap::from(expected));
}

#[test]
fn the_message_shows_whether_this_controller_signs_and_another_signer() {
    let mut signed = approved("ServingNamesCorroborated");
    signed["status"]["certificate"] = json!("eA==");
    let mut found = OtherApprovers::default();
    found.note(&serde_json::from_value(signed).unwrap());

    // Without an external signer, kube-controller-manager signs serving certificates.
    assert!(found.is_empty());
    let message = found.to_string();
    assert_eq!(
        message,
        "no other approver of serving certificates was found"
    );
    assert!(!OtherApprovers::is_signing(&message));

    let with_signers = found.with_signers();
    assert!(!with_signers.is_empty());
    let message = with_signers.to_string();
    assert_eq!(
        message,
        "this controller signs serving certificates; another signer signed 1 requests for \
         kubernetes.io/kubelet-serving in the last hour"
    );
    assert!(OtherApprovers::is_signing(&message));

    let message = OtherApprovers::default().with_signers().to_string();
    assert_eq!(
        message,
        "this controller signs serving certificates; no other approver or signer of serving certificates was found"
    );
    assert!(OtherApprovers::is_signing(&message));
    // An approver can write any reason.
    let hostile = noted(&["this controller signs serving certificates"]).to_string();
    assert!(!OtherApprovers::is_signing(&hostile), "{hostile}");
}

#[test]
fn the_reasons_of_other_approvers_are_limited_and_visible() {
    let reasons: Vec<String> = (0..20).map(|number| format!("r{number}")).collect();
    let reasons: Vec<&str> = reasons.iter().map(String::as_str).collect();

    let found = noted(&reasons);

    assert_eq!(found.approved.len(), MAX_REASONS + 1);
    assert_eq!(found.approved[OTHER], 15);
    let hostile = format!("a\u{202e}\n\"{}", "b".repeat(1000));
    let label = label(&hostile);
    assert!(label.starts_with("a__\"b"), "{label}");
    assert_eq!(label.len(), MAX_REASON_LEN);
}

#[tokio::test]
async fn an_approver_is_found_by_its_requests_and_by_its_binding() {
    let approver = rule("signers", "approve", &[BUILT_IN_SERVING_SIGNER]);
    let anything = rule("*", "*", &[]);
    let roles = vec![
        role("approver", &approver),
        role(ADMINISTRATORS, &anything),
        role("reader", &rule("signers", "get", &[])),
    ];
    let bindings = vec![
        binding("approver", "approver"),
        binding("admins", ADMINISTRATORS),
        binding("readers", "reader"),
    ];
    let requests = vec![approved("validated"), approved("ServingNamesCorroborated")];

    let found = read_from(requests, Some(roles.clone()), bindings).await;

    assert_eq!(
        found.approved,
        BTreeMap::from([("validated".to_owned(), 1)])
    );
    let expected = "ClusterRoleBinding approver to approver (ServiceAccount kube-system/approver)";
    assert_eq!(found.permitted, [expected]);
    let message = found.to_string();
    assert!(
        message.contains("1 with the reason \"validated\""),
        "{message}"
    );
    assert!(message.ends_with(expected), "{message}");
    let without = read_from(Vec::new(), Some(roles), Vec::new()).await;
    assert!(without.is_empty() && without.unread.is_none());
}

/// The manifest's binding, with these subjects.
fn own_binding(subjects: Value) -> Value {
    let mut binding = binding("ours", CONTROLLER);
    binding["subjects"] = subjects;
    binding
}

#[tokio::test]
async fn only_the_subjects_of_this_controller_are_not_named() {
    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": CONTROLLER});
    let of = |kind: &str| json!({"kind": kind, "namespace": "other", "name": CONTROLLER});
    for (subjects, expected) in [
        (json!([user]), 0),
        (json!([]), 0),
        (json!([user, of("ServiceAccount")]), 1),
        (json!([of("ServiceAccount")]), 1),
        (json!([of("Group")]), 1),
    ] {
        let approver = rule("signers", "approve", &[BUILT_IN_SERVING_SIGNER]);
        let roles = Some(vec![role(CONTROLLER, &approver)]);
        let bindings = vec![own_binding(subjects.clone())];

        let found = read_from(Vec::new(), roles, bindings).await;

        assert_eq!(found.permitted.len(), expected, "{subjects}");
    }
}

#[tokio::test]
async fn the_user_that_the_api_server_reports_is_this_controller() {
    let access = ClusterAccess::in_memory(|request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let approver = rule("signers", "approve", &[]);
        let account =
            |name: &str| json!([{"kind": "ServiceAccount", "namespace": "system", "name": name}]);
        let items = match path.rsplit('/').next().unwrap() {
            "clusterroles" => vec![role(CONTROLLER, &approver)],
            "clusterrolebindings" => vec![own_binding(account("ours")), own_binding(account("a"))],
            _ => Vec::new(),
        };
        let user = json!({"username": "system:serviceaccount:system:ours"});
        let body = json!({"metadata": {}, "items": items, "status": {"userInfo": user}});
        async move { Response::new(Full::new(Bytes::from(body.to_string()))) }
    });

    let found = read(access.client()).await.unwrap();

    let expected =
        "ClusterRoleBinding ours to node-attestation-controller (ServiceAccount system/a)";
    assert_eq!(found.permitted, [expected]);
}

#[tokio::test]
async fn a_long_name_of_this_controller_is_not_kept() {
    for (len, expected) in [(MAX_USER_LEN, 0), (MAX_USER_LEN + 1, 1)] {
        let name = "u".repeat(len);
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let items = match path.rsplit('/').next().unwrap() {
                "clusterroles" => vec![role(CONTROLLER, &rule("signers", "approve", &[]))],
                "clusterrolebindings" => vec![own_binding(json!([{"kind": "User", "name": name}]))],
                _ => Vec::new(),
            };
            let user = json!({"username": name});
            let body = json!({"metadata": {}, "items": items, "status": {"userInfo": user}});
            async move { Response::new(Full::new(Bytes::from(body.to_string()))) }
        });

        let found = read(access.client()).await.unwrap();

        assert_eq!(found.permitted.len(), expected, "{len}");
    }
}

#[test]
fn the_metric_of_other_approvals_has_few_series_for_each_cluster() {
    let mut labels = BTreeSet::new();
    for inspection in 0..20 {
        let other = format!("reason {inspection}");
        let other = other.as_str();
        let known = ["AutoApproved", "KubectlApprove", "NodeCSRApprove", ""];
        let reasons = [&known[..], &[other, "x", "y", "z"]].concat();

        let counts = noted(&reasons).by_known_reason();

        assert_eq!(counts.values().sum::<usize>(), reasons.len());
        labels.extend(counts.into_keys());
    }
    let expected = [&KNOWN[..], &[OTHER]].concat();
    let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
    assert_eq!(labels, expected);
    assert!(labels.len() <= 6);
}

#[tokio::test]
async fn without_the_right_to_list_roles_only_requests_are_reported() {
    let found = read_from(vec![approved("validated")], None, Vec::new()).await;

    assert_eq!(found.approved.len(), 1);
    let unread = found.unread.unwrap();
    assert!(unread.contains("list clusterroles"), "{unread}");
}

#[tokio::test]
async fn roles_and_bindings_that_cannot_be_read_are_named() {
    let unreadable = |name: &str| json!({"metadata": {"name": name}, "rules": 7, "roleRef": 7});
    let approver = role("approver", &rule("signers", "approve", &[]));
    let roles = vec![unreadable("odd"), approver, unreadable("other")];
    let long = "b".repeat(2 * MAX_ROLE_LEN);

    let found = read_from(Vec::new(), Some(roles), vec![unreadable(&long)]).await;

    assert!(found.is_empty());
    let unread = found.unread.unwrap();
    let expected = "cannot read clusterroles/odd and 1 more; cannot read clusterrolebindings/bbb";
    assert!(unread.starts_with(expected), "{unread}");
    assert!(unread.len() < 2 * MAX_ROLE_LEN, "{}", unread.len());
}

#[tokio::test]
async fn requests_that_cannot_be_read_are_named() {
    let odd = || vec![json!({"metadata": {"name": "odd"}, "spec": 7})];

    let found = read_from(odd(), Some(Vec::new()), Vec::new()).await;
    let without = read_from(odd(), None, Vec::new()).await;

    let expected = "cannot read certificatesigningrequests/odd";
    assert_eq!(found.unread.as_deref(), Some(expected));
    let unread = without.unread.unwrap();
    let expected = "cannot read certificatesigningrequests/odd; not allowed to list clusterroles: ";
    assert!(unread.starts_with(expected), "{unread}");
}

#[tokio::test]
async fn a_list_of_requests_without_an_end_is_reported() {
    for (is_endless, expected) in [
        (
            true,
            Some(
                "cannot read all requests for kubernetes.io/kubelet-serving, because there are too many",
            ),
        ),
        (false, None),
    ] {
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let is_of_requests = request
                .uri()
                .path()
                .ends_with("/certificatesigningrequests");
            let rest = (is_endless && is_of_requests).then_some("next");
            let list = json!({"metadata": {"continue": rest}, "items": []});
            async move { Response::new(Full::new(Bytes::from(list.to_string()))) }
        });

        let found = read(access.client()).await.unwrap();

        assert!(found.is_empty());
        assert_eq!(found.unread.as_deref(), expected);
    }
}

#[tokio::test]
async fn large_roles_are_read_in_smaller_pages() {
    const ROLES: usize = 30;
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let number = |key: &str| {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(key));
            value.map_or(0, |value| value.parse::<usize>().unwrap())
        };
        let first = number("continue=");
        let next = (first + number("limit=")).min(ROLES);
        // Together, the roles exceed the length limit for a page.
        let role = |number: usize| {
            let mut role = role(&number.to_string(), &rule("signers", "approve", &[]));
            role["rules"][0]["resourceNames"] = json!(["x".repeat(1 << 19), "kubernetes.io/*"]);
            role
        };
        let rest = (next < ROLES).then(|| next.to_string());
        let (items, rest): (Vec<Value>, _) = match request.uri().path().rsplit('/').next().unwrap()
        {
            "clusterroles" => ((first..next).map(role).collect(), rest),
            "clusterrolebindings" => (vec![binding("b", &(ROLES - 1).to_string())], None),
            _ => (Vec::new(), None),
        };
        let list = json!({"metadata": {"continue": rest}, "items": items});
        async move { Response::new(Full::new(Bytes::from(list.to_string()))) }
    });

    let found = read(access.client()).await.unwrap();

    assert_eq!((found.permitted.len(), found.unread), (1, None));
}

#[tokio::test]
async fn the_bindings_of_other_approvers_are_limited() {
    let long = "r".repeat(253);
    let roles = vec![role(&long, &rule("signers", "approve", &[]))];
    let bindings = (0..20).map(|_| {
        let mut binding = binding(&long, &long);
        let subject = binding["subjects"][0].clone();
        binding["subjects"] = json!(vec![subject; 100]);
        binding
    });

    let found = read_from(Vec::new(), Some(roles), bindings.collect()).await;

    assert_eq!((found.permitted.len(), found.more), (MAX_NAMED, 15));
    let message = found.to_string();
    assert!(
        message.len() < (MAX_NAMED + 1) * MAX_BINDING_LEN,
        "{message}"
    );
    assert!(message.ends_with("and 15 more"), "{message}");
}

#[tokio::test]
async fn more_than_200_roles_that_permit_approvals_are_an_error() {
    let approver = rule("signers", "approve", &[]);
    let read = async |count: usize| {
        let roles = (0..count).map(|number| role(&format!("r{number}"), &approver));
        try_read_from(Vec::new(), Some(roles.collect()), Vec::new()).await
    };

    assert!(read(200).await.unwrap().is_empty());
    let error = read(201).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "there are more than 200 clusterroles of approvers"
    );
}
