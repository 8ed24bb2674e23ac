use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::Body;
use kubelet_attestation::errors::error_chain;
use serde_json::json;

use super::*;
use crate::client::ClusterAccess;

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(owned(groups)),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

fn binding(name: &str, role: &str, kind: &str, subject: &str) -> ClusterRoleBinding {
    let mut binding = ClusterRoleBinding::default();
    binding.metadata.name = Some(name.to_owned());
    binding.metadata.uid = Some(format!("uid of {name}"));
    binding.role_ref.kind = "ClusterRole".to_owned();
    binding.role_ref.name = role.to_owned();
    binding.subjects = Some(vec![Subject {
        kind: kind.to_owned(),
        name: subject.to_owned(),
        ..Subject::default()
    }]);
    binding
}

fn of_kubeadm((name, grant, group): (&str, Grant, &str)) -> ClusterRoleBinding {
    let role = format!(
        "system:certificates.k8s.io:certificatesigningrequests:{}",
        grant.subresource()
    );
    binding(name, &role, "Group", group)
}

/// The paths that are open because of a binding of this role to this subject.
fn opened(rules: &[PolicyRule], kind: &str, subject: &str) -> Vec<Grant> {
    let binding = binding("b", "r", kind, subject);
    let candidate = Candidate::of(&binding);
    let candidates = candidate.as_slice();
    assert_eq!(
        roles_to_read(candidates).is_empty(),
        Holder::of(&binding.subjects.as_ref().unwrap()[0]).is_none()
    );
    let grants_of = BTreeMap::from([("r".to_owned(), Grant::all_of(rules))]);
    let scan = evaluate(candidates, &grants_of);
    scan.open.iter().map(|open| open.grant).collect()
}

#[test]
fn a_rule_grants_the_same_as_the_kubernetes_authorizer() {
    const GROUP: &str = "certificates.k8s.io";
    const BOTH: &str = "certificatesigningrequests/nodeclient";
    for (groups, resources, verbs, expected) in [
        ([GROUP], [BOTH], ["create"], true),
        (["*"], [BOTH], ["create"], true),
        ([GROUP], ["*"], ["create"], true),
        ([GROUP], ["*/nodeclient"], ["create"], true),
        ([GROUP], [BOTH], ["*"], true),
        (["*"], ["*"], ["*"], true),
        ([""], [BOTH], ["create"], false),
        ([GROUP], ["certificatesigningrequests"], ["create"], false),
        ([GROUP], ["certificatesigningrequests/*"], ["create"], false),
        ([GROUP], [BOTH], ["get"], false),
    ] {
        let rules = [rule(&groups, &resources, &verbs)];
        let granted = Grant::NodeClient.is_granted_by(&rules);
        assert_eq!(granted, expected, "{groups:?} {resources:?} {verbs:?}");
    }
}

#[test]
fn a_rule_with_resource_names_grants_no_request_without_a_name() {
    let mut rule = rule(
        &["certificates.k8s.io"],
        &["certificatesigningrequests/nodeclient"],
        &["create"],
    );
    rule.resource_names = Some(vec!["x".to_owned()]);
    assert!(!Grant::NodeClient.is_granted_by(&[rule]));
}

#[test]
fn unattested_subjects_are_reported_and_administrators_are_not() {
    let anything = [rule(&["*"], &["*"], &["*"])];
    let both = vec![Grant::NodeClient, Grant::SelfNodeClient];
    let first = vec![Grant::NodeClient];
    for (kind, subject, expected) in [
        ("Group", "system:bootstrappers", &first),
        ("Group", "system:bootstrappers:another", &first),
        ("Group", "system:nodes", &both),
        ("Group", "system:authenticated", &both),
        ("Group", "system:unauthenticated", &first),
        ("User", "system:bootstrap:abcdef", &first),
        ("User", "system:node:a", &both),
        ("User", "system:anonymous", &first),
        ("Group", "system:bootstrappersx", &vec![]),
        ("Group", "system:masters", &vec![]),
        ("User", "jane", &vec![]),
        ("ServiceAccount", "system:nodes", &vec![]),
    ] {
        assert_eq!(
            &opened(&anything, kind, subject),
            expected,
            "{kind} {subject}"
        );
    }
}

#[test]
fn the_built_in_kubernetes_roles_are_known_without_a_read() {
    let bindings = KUBEADM.map(of_kubeadm);
    let bindings = bindings.each_ref().map(|one| Candidate::of(one).unwrap());

    assert_eq!(roles_to_read(&bindings), BTreeSet::new());
    let scan = evaluate(&bindings, &BTreeMap::new());
    assert_eq!(scan.open.len(), 2);
    assert!(scan.open.iter().all(|open| open.is_kubeadms));
}

#[test]
fn a_missing_role_does_not_grant_permissions() {
    let bindings = [Candidate::of(&binding("b", "r", "Group", "system:nodes")).unwrap()];
    assert_eq!(evaluate(&bindings, &BTreeMap::new()).open, []);
}

#[test]
fn a_modified_kubeadm_binding_is_not_attributed_to_kubeadm() {
    let untouched = of_kubeadm(KUBEADM[0]);
    assert!(is_kubeadms(&untouched));

    let mut another_group = untouched.clone();
    another_group.subjects.as_mut().unwrap()[0].name = "system:bootstrappers:mine".to_owned();
    let mut one_more = untouched.clone();
    let subject = one_more.subjects.as_ref().unwrap()[0].clone();
    one_more.subjects.as_mut().unwrap().push(subject);
    let mut another_role = untouched.clone();
    another_role.role_ref.name = "cluster-admin".to_owned();
    for changed in [another_group, one_more, another_role] {
        assert!(!is_kubeadms(&changed), "{changed:?}");
        let changed = [Candidate::of(&changed).unwrap()];
        let scan = evaluate(&changed, &BTreeMap::new());
        assert!(scan.open.iter().all(|open| !open.is_kubeadms));
    }
}

/// The memory that a string and its place in a set use.
fn of_text(text: &str) -> usize {
    text.len() + TEXT_LEN
}

/// The memory that a holder uses.
fn of_holder(holder: &Holder) -> usize {
    let (Holder::Group(name) | Holder::User(name)) = holder;
    size_of_val(holder) + of_text(name)
}

/// The memory that an open binding uses. The holder of this binding does not have a separate place.
fn of_open(open: &OpenBinding) -> usize {
    let uid = open.uid.as_deref().map_or(0, of_text);
    let holder = of_holder(&open.holder) - size_of_val(&open.holder);
    size_of_val(open) + of_text(&open.name) + of_text(&open.role) + holder + uid
}

#[test]
fn the_size_of_a_candidate_covers_all_bindings_derived_from_it() {
    let (name, role) = ("n".repeat(100), "r".repeat(90));
    let grants_of = BTreeMap::from([(role.clone(), Grant::ALL.to_vec())]);
    let custom = |kind: &str, subject: &str, count: usize| {
        let mut binding = binding(&name, &role, kind, subject);
        let subjects = binding.subjects.as_mut().unwrap();
        subjects.extend(vec![subjects[0].clone(); count - 1]);
        binding.metadata.uid = Some("u".repeat(1000));
        binding
    };
    let tokens = format!("{BOOTSTRAPPERS}:{}", "t".repeat(100));
    let [first, second] = KUBEADM.map(of_kubeadm);
    for (binding, open) in [
        (custom("User", "system:node:a", 1), 2),
        (custom("User", "system:node:a", 100), 200),
        (custom("User", "system:anonymous", 2), 2),
        (custom("Group", NODES, 3), 6),
        (custom("Group", &tokens, 1), 1),
        (first, 1),
        (second, 1),
    ] {
        let candidate = Candidate::of(&binding).unwrap();
        let len = candidate.len();
        let Candidate {
            name,
            uid,
            role,
            is_kubeadms: _,
            holders,
        } = &candidate;
        let texts = of_text(name) + of_text(role) + uid.as_deref().map_or(0, of_text);
        let holders: usize = holders.iter().map(of_holder).sum();
        let own = size_of_val(&candidate) + texts + holders;

        let scan = evaluate(&[candidate], &grants_of);

        assert_eq!(scan.open.len(), open);
        let bindings: usize = scan.open.iter().map(of_open).sum();
        // Each binding is also stored as a path. Each group is also stored in a review query and in a call.
        let groups = scan.token_groups.iter().map(|group| 3 * of_text(group));
        let groups: usize = groups.sum();
        assert_eq!(len, own + 2 * bindings + groups, "{binding:?}");
    }
}

/// Removes kubeadm's bindings. The API server answers every call about the first binding with this status.
async fn removed_with(code: u16) -> (Result<Removed, HardeningError>, Vec<String>) {
    let access = ClusterAccess::in_memory(move |request: Request<Body>| async move {
        let is_first = request.uri().path().ends_with(KUBEADM[0].0);
        let code = if is_first { code } else { 200 };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "code": code, "reason": "",
            "message": "admission webhook denied the request",
        });
        let body = Full::new(Bytes::from(status.to_string()));
        Response::builder().status(code).body(body).unwrap()
    });
    let bindings = KUBEADM.map(of_kubeadm);
    let candidates: Vec<_> = bindings.iter().filter_map(Candidate::of).collect();
    let mut scan = evaluate(&candidates, &BTreeMap::new());
    assert_eq!(scan.open.len(), 2);
    let removed = remove(access.client(), &mut scan).await;
    let left = scan.open.into_iter().map(|open| open.name);
    (removed, left.collect())
}

#[tokio::test]
async fn a_kubeadm_binding_that_cannot_be_deleted_does_not_protect_the_other() {
    let [first, second] = KUBEADM.map(|(name, ..)| name);
    for code in [400, 403, 409, 422] {
        let (removed, left) = Box::pin(removed_with(code)).await;

        let removed = removed.unwrap();
        assert_eq!(removed.names, [second], "{code}");
        assert_eq!(left, [first], "{code}");
        let refusals: Vec<_> = removed.refusals.iter().map(ToString::to_string).collect();
        assert_eq!(refusals.len(), 1, "{code}");
        assert!(refusals[0].contains(first), "{refusals:?}");
        assert!(
            refusals[0].contains("admission webhook denied"),
            "{refusals:?}"
        );
    }

    // A binding is no longer open after this call or another client has deleted it.
    for code in [200, 404] {
        let (removed, left) = Box::pin(removed_with(code)).await;

        let removed = removed.unwrap();
        assert_eq!(removed.names, [first, second], "{code}");
        assert_eq!((left.len(), removed.refusals.len()), (0, 0), "{code}");
    }
}

#[tokio::test]
async fn an_outage_during_the_removal_of_bindings_is_an_error() {
    let (removed, _) = Box::pin(removed_with(503)).await;

    let error = removed.unwrap_err();
    assert!(
        matches!(error, HardeningError::Unavailable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn bindings_over_the_memory_of_their_namespace_are_an_error() {
    let access = ClusterAccess::in_memory(|_| async {
        let (_, grant, _) = KUBEADM[0];
        let role = format!(
            "system:certificates.k8s.io:certificatesigningrequests:{}",
            grant.subresource()
        );
        let subject = json!({"kind": "Group", "name": NODES});
        let binding = json!({
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": vec![subject; 200],
        });
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": [binding]});
        Response::new(Full::new(Bytes::from(list.to_string())))
    });
    let scanned = async |memory: usize| {
        let mut memory = Share::alone(memory).holding();
        let lines = ClusterLines::of_namespace("");
        let scan = scan_of(access.client(), &lines, &mut memory).await;
        scan.map(|scan| scan.open.len())
    };

    assert_eq!(scanned(256 * 1024).await.unwrap(), 200);
    let error = error_chain(&scanned(OWN_MEMORY).await.unwrap_err());
    assert!(
        error.starts_with("cannot list clusterrolebindings: "),
        "{error}"
    );
    assert!(error.ends_with(&Excess::Memory.to_string()), "{error}");
}

#[tokio::test]
async fn bindings_to_more_than_200_roles_are_an_error() {
    let scanned = async |roles: usize| {
        let access = ClusterAccess::in_memory(move |request: Request<Body>| async move {
            let path = request.uri().path();
            let binding = |role: usize| {
                json!({
                    "metadata": {"name": format!("b{role}")},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": format!("r{role}"),
                    },
                    "subjects": [{"kind": "Group", "name": NODES}],
                })
            };
            let answer = if path.ends_with("/clusterrolebindings") {
                let bindings: Vec<_> = (0..roles).map(binding).collect();
                json!({"metadata": {"resourceVersion": "1"}, "items": bindings})
            } else {
                let name = path.rsplit('/').next();
                json!({"metadata": {"name": name}, "rules": []})
            };
            Response::new(Full::new(Bytes::from(answer.to_string())))
        });
        let mut memory = Share::alone(1024 * 1024).holding();
        let lines = ClusterLines::of_namespace("");
        let scan = scan_of(access.client(), &lines, &mut memory).await;
        let scan = scan.map(|scan| scan.open.len());
        scan.map_err(|error| error_chain(&error))
    };

    assert_eq!(scanned(200).await, Ok(0));
    let too_many = "there are more than 200 clusterroles of tokens and nodes";
    assert_eq!(scanned(201).await, Err(too_many.to_owned()));
}
