//! Tests of records that are lost, or restored from a backup that is older than joins, renewals and revocations. The
//! nodes keep their certificates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, User};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{
    Application, certificate_of, is_answered, reason_of,
};
use kubelet_authenticator_tests::management::{Machine, Management, WorkloadCluster};
use serde_json::{Value, json};

use crate::bed::{Manager, allow_short_certificates, authorize, kubelet, management};
use crate::restored::identities;
use crate::witness::{
    PATIENCE, issued, lose_disk, mark, record, uid_of, wait_for_certificate, wait_until_ready,
    workload,
};

/// A lifetime for which the renewal is after 45 to 63 seconds.
const SECONDS: u32 = 90;

/// A node that sends each request itself, without a kubelet.
struct Member {
    machine: Machine,
    /// The kubeconfig that contains the node's certificate. Before the join, it contains the node's token.
    kubeconfig: PathBuf,
    /// `<uid>.<generation>` in its certificate.
    uid: String,
}

impl Member {
    fn new(cluster: &WorkloadCluster, name: &str) -> Self {
        let machine = cluster.machine(name).create();
        Self {
            kubeconfig: machine.bootstrap_kubeconfig(),
            machine,
            uid: String::new(),
        }
    }

    fn name(&self) -> &str {
        self.machine.node_name()
    }

    /// The record of the certificate, without the generation.
    fn record_uid(&self) -> &str {
        self.uid.split_once('.').unwrap().0
    }

    fn generation(&self) -> u64 {
        self.uid.split_once('.').unwrap().1.parse().unwrap()
    }

    /// The member's node name and provider ID.
    fn of_machine(&self) -> (&str, &str) {
        (self.name(), self.machine.provider_id())
    }

    /// Sends a request with the member's credential that claims to be this machine.
    fn send(&self, plane: &ControlPlane, provider_id: &str) -> Application {
        send(plane, &self.kubeconfig, (self.name(), provider_id))
    }

    /// Makes the node use this certificate.
    fn take(&mut self, plane: &ControlPlane, sent: &Application, csr: &Value) {
        let pair = KeyAndCertificate {
            certificate_pem: certificate_of(csr).unwrap_or_else(|| panic!("{csr:#}")),
            key_pem: sent.key_pem().to_owned(),
        };
        self.kubeconfig = plane.kubeconfig(User::Certificate(pair));
        self.uid = uid_of(csr);
    }
}

/// Sends a request from this node and machine, with a rubber stamp.
fn send(plane: &ControlPlane, kubeconfig: &Path, (node, id): (&str, &str)) -> Application {
    let application = Application::stamped(node, id, plane.ca().certificate_pem());
    let kubectl = plane.kubectl_with(kubeconfig);
    kubectl.create_object(&application.to_json());
    application
}

/// Asserts that the API server rejects a request with a revoked certificate.
#[track_caller]
fn is_refused(plane: &ControlPlane, kubeconfig: &Path, (node, id): (&str, &str)) {
    let application = Application::stamped(node, id, plane.ca().certificate_pem());
    let kubectl = plane.kubectl_with(kubeconfig);
    let error = kubectl.try_create(&application.to_json());
    let error = error.expect_err("a revoked certificate sends a request");
    let expected = format!("of system:node:{node} is revoked");
    assert!(error.contains(&expected), "{error}");
}

/// The answered requests, in the same order as in `sent`.
#[track_caller]
fn answers(plane: &ControlPlane, sent: &[Application]) -> Vec<Value> {
    let names: Vec<String> = sent.iter().map(Application::name).collect();
    let answered = poll(PATIENCE, || {
        let csrs = plane.csrs().into_iter().filter(is_answered);
        let name = |csr: &Value| csr["metadata"]["name"].as_str().unwrap().to_owned();
        let known: BTreeMap<String, Value> = csrs.map(|csr| (name(&csr), csr)).collect();
        let found = names.iter().map(|name| known.get(name).cloned());
        found.collect::<Option<Vec<Value>>>()
    });
    answered.expect("a request has no answer")
}

/// Makes each member send a request with its credential, and use the certificate that it gets.
#[track_caller]
fn get_certificates(plane: &ControlPlane, members: &mut [Member]) {
    let send = |member: &Member| member.send(plane, member.machine.provider_id());
    let sent: Vec<Application> = members.iter().map(send).collect();
    let answers = answers(plane, &sent);
    for ((member, sent), csr) in members.iter_mut().zip(&sent).zip(&answers) {
        member.take(plane, sent, csr);
    }
}

#[track_caller]
fn is_denied(csr: &Value, reason: &str) {
    assert_eq!(reason_of(csr, "Denied"), Some(reason), "{csr:#}");
}

/// `<uid>.<generation>` of each record, keyed by node name.
fn records(management: &Management) -> BTreeMap<String, String> {
    let list = management
        .kubectl()
        .json(["get", "nodeidentities", "-n", "default"]);
    let items = list["items"].as_array().unwrap();
    let name = |record: &Value| record["spec"]["nodeName"].as_str().unwrap().to_owned();
    items.iter().map(|item| (name(item), mark(item))).collect()
}

/// Revokes the certificates of the member, and waits for the entry in the workload cluster's list.
#[track_caller]
fn revoke(management: &Management, plane: &ControlPlane, member: &Member) {
    identities(management, &["revoke", "--yes", "prod-1", member.name()]);
    let kubectl = plane.kubectl();
    let list = "revokednodecredentials/node-attestation-controller";
    let entries = "jsonpath={.spec.revokedKeys}";
    let listed = poll(PATIENCE, || {
        let printed = kubectl.run(["get", list, "-o", entries]).stdout;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        printed.contains(member.machine.provider_id()).then_some(())
    });
    assert!(listed.is_some(), "the revocation is not in the list");
}

#[test]
fn a_hundred_nodes_recover_lost_records_and_a_revoked_node_does_not() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let plane = cluster.control_plane().clone();
    let _manager = Manager::null(&management, &[]);
    let spec = json!({"adoption": "Recover"});
    authorize(&management, &cluster, &["aws"], spec).wait_until_ready(management.kubectl());
    let member = |number: u32| Member::new(&cluster, &format!("m{number}"));
    let mut members: Vec<Member> = (0..100).map(member).collect();
    get_certificates(&plane, &mut members);
    let revoked = members.remove(0);
    revoke(&management, &plane, &revoked);

    let all = ["delete", "nodeidentities", "--all", "-n", "default"];
    management.kubectl().ok(all);
    assert!(records(&management).is_empty());

    // A machine cannot recover its name with another machine's certificate.
    let other = members[0].send(&plane, members[1].machine.provider_id());
    is_denied(&answers(&plane, &[other])[0], "NodeNameMismatch");
    is_refused(&plane, &revoked.kubeconfig, revoked.of_machine());
    let before: Vec<(String, u64)> = members
        .iter()
        .map(|member| (member.record_uid().to_owned(), member.generation()))
        .collect();
    get_certificates(&plane, &mut members);

    let now = records(&management);
    assert_eq!(now.len(), members.len());
    for (member, (uid, generation)) in members.iter().zip(before) {
        assert_eq!(now[member.name()], member.uid);
        assert_eq!(member.record_uid(), uid);
        assert!(member.generation() > generation, "{}", member.uid);
    }
    // The recovered records renew as before.
    let recovered = now;
    get_certificates(&plane, &mut members);
    assert_eq!(records(&management), recovered);
    is_refused(&plane, &revoked.kubeconfig, revoked.of_machine());
}

#[test]
fn nodes_recover_records_that_are_older_than_a_join_or_a_new_key() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let plane = cluster.control_plane().clone();
    let manager = Manager::null(&management, &[]);
    let spec = json!({"adoption": "Recover"});
    authorize(&management, &cluster, &["aws"], spec).wait_until_ready(management.kubectl());
    let [mut kept, mut replaced, mut revoked, mut joined] =
        ["kept", "replaced", "revoked", "joined"].map(|name| Member::new(&cluster, name));
    for member in [&mut kept, &mut replaced, &mut revoked] {
        get_certificates(&plane, std::slice::from_mut(member));
    }
    let former = (replaced.kubeconfig.clone(), replaced.uid.clone());
    let generation = replaced.generation();
    let backup = management.control_plane().backup();
    get_certificates(&plane, std::slice::from_mut(&mut joined));
    // The machine has a new disk, and a Node with this name does not exist.
    replaced.kubeconfig = replaced.machine.bootstrap_kubeconfig();
    get_certificates(&plane, std::slice::from_mut(&mut replaced));
    assert!(replaced.generation() > generation);
    revoke(&management, &plane, &revoked);

    drop(manager);
    management.control_plane().restore(&backup);
    assert!(!records(&management).contains_key("joined"));
    assert_eq!(records(&management)["replaced"], former.1);
    let _manager = Manager::null(&management, &[]);

    let before = [&kept, &replaced, &joined].map(Member::generation);
    let mut members = [kept, replaced, joined];
    get_certificates(&plane, &mut members);
    let now = records(&management);
    for (member, before) in members.iter().zip(before) {
        assert_eq!(now[member.name()], member.uid);
        // The backup contains the current record of the node `kept`, so this node renews in the same generation.
        let is_kept = member.name() == "kept";
        assert_eq!(member.generation() == before, is_kept, "{}", member.uid);
    }
    is_refused(&plane, &revoked.kubeconfig, revoked.of_machine());
    let id = members[1].machine.provider_id();
    is_refused(&plane, &former.0, ("replaced", id));
}

#[test]
fn a_running_kubelet_recovers_its_lost_record_without_a_change() {
    let management = management();
    allow_short_certificates(&management);
    let builder = management.cluster("prod-1").workload(workload().into());
    let cluster = builder.create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let _manager = Manager::null(&management, &[]);
    let lifetime = json!({"expirationSeconds": SECONDS});
    let spec = json!({"adoption": "Recover", "certificate": lifetime});
    authorize(&management, &cluster, &["aws"], spec).wait_until_ready(management.kubectl());
    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    wait_until_ready(&plane, "m1");
    let now = || record(management.kubectl(), "default", "prod-1", "m1");
    let before = now();
    let known = issued(&plane, "m1").len();

    management
        .kubectl()
        .ok(["delete", "nodeidentity", "prod-1.m1", "-n", "default"]);

    let is_next = |csr: &Value| uid_of(csr) != mark(&before);
    let recovered = wait_for_certificate(&plane, "m1", known, is_next);
    assert_eq!(recovered["spec"]["username"], "system:node:m1");
    let after = now();
    assert_eq!(uid_of(&recovered), mark(&after));
    assert_eq!(after["spec"]["uid"], before["spec"]["uid"]);
    assert!(after["spec"]["generation"].as_u64() > before["spec"]["generation"].as_u64());
    // The node renews with the recovered record. After this renewal, the node's previous certificate is no longer
    // valid.
    let known = issued(&plane, "m1").len();
    let renewed = wait_for_certificate(&plane, "m1", known, |_| true);
    assert_eq!(uid_of(&renewed), mark(&after));
    assert!(now()["spec"]["supersededGeneration"].is_null());
    kubelet.wait_for_lease_renewal();
    wait_until_ready(&plane, "m1");
}

#[test]
fn nodes_without_evidence_get_lost_records_by_an_operators_act() {
    const MACHINES: &str = "machines.cluster.x-k8s.io";
    let management = management();
    let builder = management.cluster("prod-1").workload(workload().into());
    let cluster = builder.create();
    let plane = cluster.control_plane().clone();
    let machines = ["m1", "m2"].map(|name| cluster.machine(name).create());
    let _manager = Manager::insecure(&management, &[]);
    authorize(&management, &cluster, &["insecure"], json!({}))
        .wait_until_ready(management.kubectl());
    let plugin = "kubelet-authenticator-insecure";
    let mut kubelets = machines
        .each_ref()
        .map(|machine| kubelet(&cluster, machine, plugin).start());
    let kubectl = management.kubectl();
    for (name, kubelet) in ["m1", "m2"].into_iter().zip(&kubelets) {
        kubelet.wait_until_ready();
        wait_until_ready(&plane, name);
        let target = [MACHINES, name, "-n", "default"];
        let node = json!({"status": {"nodeRef": {"name": name}}});
        kubectl.patch(&[&target[..], &["--subresource=status"]].concat(), &node);
        kubectl.patch(&target, &json!({"metadata": {"labels": {"rack": name}}}));
    }
    let before = records(&management);
    kubectl.ok(["delete", "nodeidentities", "--all", "-n", "default"]);

    identities(&management, &["restored", "prod-1", "m1", "--dry-run"]);
    assert!(records(&management).is_empty());
    identities(&management, &["restored", "prod-1", "m1"]);
    identities(
        &management,
        &["restored", "prod-1", "--selector", "rack=m2"],
    );

    let recreated = records(&management);
    assert!(recreated.keys().eq(before.keys()), "{recreated:?}");
    for (machine, kubelet) in machines.iter().zip(&mut kubelets) {
        let node = machine.node_name();
        let now = || record(kubectl, "default", "prod-1", node);
        assert_eq!(now()["spec"]["providerID"], machine.provider_id());
        // The current certificate remains valid, although the record does not contain it.
        kubelet.wait_for_lease_renewal();
        let known = issued(&plane, node).len();
        // This step is equivalent to `kubelet-authenticator-insecure reset --yes` and a restart. The Node is up.
        lose_disk(kubelet);
        let next = wait_for_certificate(&plane, node, known, |_| true);
        let (uid, _) = recreated[node].split_once('.').unwrap();
        assert_eq!(uid_of(&next), mark(&now()));
        assert_eq!(now()["spec"]["uid"], uid);
        assert_ne!(mark(&now()), recreated[node]);
        kubelet.wait_for_lease_renewal();
    }
    wait_until_ready(&plane, "m1");
}
