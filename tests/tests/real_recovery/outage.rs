//! Tests of a controller outage with 200 nodes. The outage lasts until the renewal of each certificate is due. A lifetime
//! of 5 minutes represents 7 days, and the other times are scaled in the same way. The tests cannot shift the clock
//! instead, because API server responses show the plugin that its clock is ahead.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::prelude::*;
use kubelet_authenticator_test_support::api_server::{ApiServer, exec_info};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Machine, Setup, define_identities, is_answered};
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::json;

const NODES: usize = 200;

/// The number of parallel runs. Each run waits for most of its 5 seconds.
const AT_ONCE: usize = 100;

/// The lifetime of a certificate. The renewal is due after 50 to 70 % of the lifetime.
const LIFETIME: Duration = Duration::from_mins(5);

const PATIENCE: Duration = Duration::from_secs(180);

const SECRET: &str = "0123456789abcdef";

struct Fleet {
    plane: ControlPlane,
    nodes: Vec<Node>,
}

impl Fleet {
    fn start(machines: &[Machine]) -> Self {
        let plane = ControlPlane::builder()
            .controllers(Controllers::None)
            .start();
        plane.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
        define_identities(plane.kubectl());
        let secrets = machines.iter().map(|machine| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
                "metadata": {
                    "name": format!("bootstrap-token-{}", machine.token), "namespace": "kube-system",
                },
                "stringData": {
                    "token-id": machine.token, "token-secret": SECRET,
                    "usage-bootstrap-authentication": "true",
                    "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
                },
            })
        });
        let list =
            json!({"apiVersion": "v1", "kind": "List", "items": secrets.collect::<Vec<_>>()});
        plane.kubectl().apply_object(&list);
        let last = machines.last().unwrap();
        plane.add_bootstrap_token(last.token, SECRET);
        // The fixture for nodes requires an API server, but no node connects to it.
        let unused = ApiServer::start();
        let ca = BASE64_STANDARD.encode(plane.ca().certificate_pem());
        let info = json!({"server": plane.server(), "certificate-authority-data": ca});
        let nodes = machines.iter().map(|machine| {
            let mut node = Node::new(NULL, &unused);
            let bearer = format!("{}.{SECRET}", machine.token);
            node.set("bootstrapKubeconfig", plane.kubeconfig(User::Token(bearer)));
            node.set("nodeName", machine.name);
            node.set("providerID", machine.provider_id());
            node.set_env("KUBERNETES_EXEC_INFO", exec_info("v1", Some(info.clone())));
            node
        });
        Self {
            nodes: nodes.collect(),
            plane,
        }
    }

    /// Runs the plugin once on each node. Returns the printed certificates.
    #[track_caller]
    fn run(&self) -> Vec<String> {
        let mut printed = Vec::new();
        for nodes in self.nodes.chunks(AT_ONCE) {
            let started: Vec<_> = nodes.iter().map(|node| node.start(&[])).collect();
            let ended = started.into_iter().map(|run| run.finish().succeeded());
            printed.extend(ended.map(|run| run.pair().0));
        }
        printed
    }

    /// The nodes with an unanswered request. No node has two pending requests, because a node creates at most one
    /// request every 10 minutes, and this outage is shorter.
    #[track_caller]
    fn open(&self) -> BTreeMap<String, usize> {
        let mut of_node: BTreeMap<String, usize> = BTreeMap::new();
        for csr in self.plane.csrs() {
            if !is_answered(&csr) {
                let user = csr["spec"]["username"].as_str().unwrap();
                *of_node.entry(user.to_owned()).or_default() += 1;
            }
        }
        assert!(of_node.values().all(|count| *count == 1), "{of_node:#?}");
        of_node
    }
}

#[test]
fn two_hundred_nodes_keep_one_request_each_in_an_outage_and_renew() {
    let machines: Vec<Machine> = (0..NODES)
        .map(|number| Machine::new(format!("n{number}").leak(), format!("t{number:05}").leak()))
        .collect();
    let fleet = Fleet::start(&machines);
    let plane = &fleet.plane;
    let ca = (&*plane.ca_cert_path(), &*plane.ca_key_path());
    let program = program("null-attestation-controller");
    let lifetime = format!("{}s", LIFETIME.as_secs());
    let setup = Setup::new(&program, plane.admin_kubeconfig(), ca, &machines);
    let setup = setup.args(&["--certificate-duration", &lifetime]);
    let mut controller = setup.start();
    controller.wait_until_it_watches();
    let joined = fleet.run();
    // The stopped controller does not process requests.
    controller.process.signal(Signal::STOP);

    // Half of the renewals are due before this time has passed, and all are due after 70 % of the lifetime. On a busy
    // machine, the joins and the runs take tens of seconds, so the test waits for the requests, and not for a point in
    // time. If a certificate expires first, a run fails.
    poll(LIFETIME * 3 / 5, || None::<()>);
    while fleet.open().len() < NODES {
        assert_eq!(fleet.run(), joined);
    }
    // A node with a request does not create another request.
    assert_eq!(fleet.run(), joined);
    assert_eq!(fleet.open().len(), NODES, "renewals that are due");

    controller.process.signal(Signal::CONT);
    let answered = || plane.csrs().iter().all(is_answered).then_some(());
    assert!(poll(PATIENCE, answered).is_some(), "requests stay open");
    let renewed = fleet.run();
    let pairs = renewed.iter().zip(&joined);
    assert_eq!(pairs.filter(|(now, before)| now != before).count(), NODES);
}
