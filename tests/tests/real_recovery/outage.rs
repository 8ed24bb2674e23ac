//! An outage of the controller of five days, as two hundred nodes go through it. Their clocks are ahead; the cluster's is not.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::prelude::*;
use kubelet_authenticator_test_support::api_server::{ApiServer, exec_info};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Machine, Setup, is_answered};
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::{Value, json};

const NODES: usize = 200;

/// Runs at a time: each of them waits most of its five seconds.
const AT_ONCE: usize = 100;

/// The hours after the join at which each kubelet runs its plugin: from the first renewal that is due on, to the fifth day.
/// A kubelet would run it far more often, and find its request still there.
const HOURS: [u64; 7] = [30, 31, 40, 50, 55, 70, 119];

/// Kubernetes removes requests without an answer after this number of hours.
const COLLECTED: u64 = 24;

/// The number of requests without an answer that a node may have at any time.
const MOST: usize = 3;

const PATIENCE: Duration = Duration::from_secs(180);

const SECRET: &str = "0123456789abcdef";

struct Fleet {
    plane: ControlPlane,
    nodes: Vec<Node>,
    /// The hour at which each request was first seen, of those without an answer.
    seen: BTreeMap<String, u64>,
}

impl Fleet {
    fn start(machines: &[Machine]) -> Self {
        let plane = ControlPlane::builder()
            .controllers(Controllers::None)
            .start();
        plane.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
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
        // The nodes' fixture wants one; nothing connects to it.
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
            seen: BTreeMap::new(),
        }
    }

    /// Runs the plugin once on each node; returns the certificates that they print.
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

    fn set_hour(&mut self, hour: u64) {
        for node in &mut self.nodes {
            // As boots.rs does with the clocks of instances.
            node.set_env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1");
            node.set_env("FAKETIME", format!("+{}", hour * 3600));
            node.set_env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
    }

    /// The requests without a certificate, by their names, with their nodes' machines.
    fn open(&self) -> BTreeMap<String, String> {
        let mut csrs = self.plane.csrs();
        csrs.retain(|csr| csr["status"]["certificate"].is_null());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        csrs.iter()
            .map(|csr| {
                (
                    text(&csr["metadata"]["name"]),
                    text(&csr["spec"]["username"]),
                )
            })
            .collect()
    }

    /// Removes what Kubernetes would have removed at this hour, and asserts that no node has more requests than it may.
    #[track_caller]
    fn count(&mut self, hour: u64) {
        let open = self.open();
        for name in open.keys() {
            self.seen.entry(name.clone()).or_insert(hour);
        }
        let (old, young): (Vec<_>, Vec<_>) = open
            .into_iter()
            .partition(|(name, _)| hour - self.seen[name] >= COLLECTED);
        if !old.is_empty() {
            let names = old.iter().map(|(name, _)| &**name);
            let words = ["delete", "certificatesigningrequests", "--wait=false"];
            self.plane.kubectl().ok(words.into_iter().chain(names));
        }
        let mut of_node: BTreeMap<String, usize> = BTreeMap::new();
        for (_, node) in young {
            *of_node.entry(node).or_default() += 1;
        }
        assert_eq!(of_node.len(), NODES, "at {hour} h");
        let most = of_node.values().max().copied();
        assert!(most <= Some(MOST), "{most:?} at {hour} h: {of_node:#?}");
    }
}

#[test]
fn two_hundred_nodes_leave_three_requests_each_in_five_days_without_a_controller_and_renew_afterwards()
 {
    let machines: Vec<Machine> = (0..NODES)
        .map(|number| Machine::new(format!("n{number}").leak(), format!("t{number:05}").leak()))
        .collect();
    let mut fleet = Fleet::start(&machines);
    let plane = &fleet.plane;
    let ca = (&*plane.ca_cert_path(), &*plane.ca_key_path());
    let controller = program("null-attestation-controller");
    let setup = Setup::new(&controller, plane.admin_kubeconfig(), ca, &machines);
    let mut controller = setup.start();
    controller.wait_until_it_watches();
    let joined = fleet.run();
    // It keeps its records, which are in its memory here, and does nothing.
    controller.process.signal(Signal::STOP);

    for hour in HOURS {
        fleet.set_hour(hour);
        assert_eq!(fleet.run(), joined);
        fleet.count(hour);
    }

    controller.process.signal(Signal::CONT);
    let plane = &fleet.plane;
    let answered = || plane.csrs().iter().all(is_answered).then_some(());
    assert!(poll(PATIENCE, answered).is_some(), "requests stay open");
    let last = HOURS[HOURS.len() - 1];
    let mut renewed = 0;
    // The first run finds an answer, or files a request in place of one that was not answered.
    for hour in [last + 1, last + 12] {
        fleet.set_hour(hour);
        let printed = fleet.run();
        let pairs = printed.iter().zip(&joined);
        renewed = pairs.filter(|(now, before)| now != before).count();
    }
    assert_eq!(renewed, NODES);
}
