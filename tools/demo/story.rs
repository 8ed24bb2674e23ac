//! Prints the demo step by step.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Verb};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding,
};
use serde_json::json;

use crate::attacker::{self, Attacker, BUILT_IN, INSECURE, Verdict, Wish};
use crate::attacks::{ATTACKS, Expected, JOINED, LEAKED, UNDECIDED};
use crate::cluster::{self, Cluster};
use crate::controller::Controller;
use crate::plugin::{Plugin, Run};

const START: Duration = Duration::from_secs(60);

/// Runs the demo on an API server in this process. Returns `false` if a step has an unexpected result.
pub fn embedded() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start();
    println!("An API server in this process, the real controller, the real plugin.");
    let cluster = Cluster::Embedded(server);
    cluster.add_tokens();
    let controller = controller(&cluster, folder.path());
    if let Cluster::Embedded(server) = &cluster {
        server.wait_for_request(Verb::Watch, 1, START);
    }
    let stock = ATTACKS.iter().map(|attack| attack.stock).collect();
    let plugin = |machine| Plugin::insecure(&cluster, folder.path(), machine);
    let joined = join(&cluster, &controller, JOINED, INSECURE, &plugin(JOINED));
    let killed = "worker-3";
    let resumed = killed_in_the_middle(&cluster, &controller, killed, INSECURE, &plugin(killed));
    let refused = attacks(&cluster, &controller, &joined.1, stock);
    println!(
        "\nThe column \"stock\" shows how Kubernetes itself responds. To try it: make demo CONTROL_PLANE=real"
    );
    joined.0 && resumed && refused
}

/// Runs the demo with a real control plane. Returns `false` if a step has an unexpected result.
pub fn real() -> bool {
    let folder = tempfile::tempdir().unwrap();
    println!("Real etcd, kube-apiserver, kube-controller-manager and kubelet.");
    let plane = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    plane.install_kubeadm_bindings();
    let cluster = Cluster::Real(Box::new(plane));
    cluster.add_tokens();
    let Cluster::Real(plane) = &cluster else {
        return false;
    };
    let closed = stock_and_closed(&cluster, plane);
    let controller = controller(&cluster, folder.path());
    let plugin = |machine| Plugin::insecure(&cluster, folder.path(), machine);
    let joined = join(&cluster, &controller, JOINED, INSECURE, &plugin(JOINED));
    let killed = "worker-3";
    let resumed = killed_in_the_middle(&cluster, &controller, killed, INSECURE, &plugin(killed));
    let refused = attacks(
        &cluster,
        &controller,
        &joined.1,
        ATTACKS.iter().map(|attack| attack.stock).collect(),
    );
    let name = "control-plane-1";
    kubelet(plane, name, &plugin(name));
    closed && joined.0 && resumed && refused
}

/// Whether the attacks have their documented outcomes in a cluster in the state that kubeadm creates, and fail without
/// kubeadm's bindings.
pub fn stock_and_closed(cluster: &Cluster, plane: &ControlPlane) -> bool {
    let stock = stock_bindings(cluster);
    closed(cluster, plane) && stock
}

/// Whether Kubernetes' built-in signer stops issuing certificates after kubeadm's bindings are deleted.
pub fn closed(cluster: &Cluster, plane: &ControlPlane) -> bool {
    plane.remove_binding(KubeadmBinding::NodeAutoapproveBootstrap);
    plane.remove_binding(KubeadmBinding::NodeAutoapproveCertificateRotation);
    println!("\nkubeadm's two auto-approval bindings are removed.");
    let attacker = Attacker::holding(cluster, LEAKED).expecting_no_outcome(true);
    let closed = attacker.ask(&Wish::node("control-plane-1", BUILT_IN));
    println!("  a control-plane node's name again: {}", closed.summary());
    matches!(closed, Verdict::Undecided)
}

fn controller(cluster: &Cluster, folder: &Path) -> Controller {
    let machines = cluster::inventory(cluster::provider_id);
    let spec = json!({"authorizedAttestors": ["insecure"]});
    Controller::start(cluster, folder, &machines, &spec, |launch| {
        launch.arg("--allow-insecure")
    })
}

/// Whether the attacks have their documented outcomes in a cluster in the state that kubeadm creates.
fn stock_bindings(cluster: &Cluster) -> bool {
    println!("\n== Stock: kubeadm's bindings, Kubernetes' own signer ==");
    println!("  an attacker holds bootstrap tokens, and requests from {BUILT_IN}:");
    let (victim, _) = Wish::node(JOINED, BUILT_IN).request();
    let mut as_said = true;
    for attack in &ATTACKS {
        let attacker = Attacker::holding(cluster, attack.token);
        let attacker = attacker.expecting_no_outcome(attack.stock == UNDECIDED);
        let verdict = attack.on_stock(&attacker, &victim);
        println!("  {:<52} {}", attack.what, verdict.summary());
        as_said &= verdict.summary() == attack.stock;
        if let (Verdict::Issued(certificate), "a control-plane node's name") =
            (&verdict, attack.what)
        {
            println!("      the attacker's now: {}", describe(certificate));
        }
    }
    as_said
}

/// Makes a machine join. Returns whether the machine joined, and the name of its request.
pub fn join(
    cluster: &Cluster,
    controller: &Controller,
    machine: &str,
    signer: &str,
    plugin: &Plugin,
) -> (bool, String) {
    println!("\n== {machine} joins ==");
    println!(
        "  demo        runs {}, as client-go in a kubelet does",
        plugin.name()
    );
    let mut run = plugin.start();
    let Some(csr) = cluster.wait_for_request_of(machine, signer, || run.goes_on()) else {
        return (told(&run.finish()), String::new());
    };
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&csr["metadata"]["name"]);
    println!(
        "  plugin      has no credential: creates a key and a request, saves both, and sends the request"
    );
    println!("  API server  has {name}");
    println!(
        "              by {} for {}",
        text(&csr["spec"]["username"]),
        text(&csr["spec"]["signerName"])
    );
    let decision = controller.decision(|fields| fields["csr"] == name.as_str());
    for check in &decision.checks {
        println!(
            "  controller  {:<15} {:>8.3} ms  passed",
            check.name, check.millis
        );
    }
    println!(
        "  controller  {} after {:.1} ms: {}",
        decision.outcome, decision.millis, decision.detail
    );
    let joined = told_twice(&run.finish(), plugin);
    (joined && decision.outcome == "issued", name)
}

/// Whether a run returned a credential, and the next run returns the same credential.
pub fn told_twice(run: &Run, plugin: &Plugin) -> bool {
    let joined = told(run);
    let again = plugin.run();
    println!(
        "  plugin      second run: the same credential from its store in {}",
        millis(again.took)
    );
    joined && again.certificate() == run.certificate()
}

/// Kills the plugin while the request is open. Returns whether the next run finishes the same request.
pub fn killed_in_the_middle(
    cluster: &Cluster,
    controller: &Controller,
    machine: &str,
    signer: &str,
    plugin: &Plugin,
) -> bool {
    println!("\n== {machine} is killed during its enrollment ==");
    controller.pause();
    let mut run = plugin.start();
    let Some(csr) = cluster.wait_for_request_of(machine, signer, || run.goes_on()) else {
        controller.resume();
        return told(&run.finish());
    };
    let name = csr["metadata"]["name"].as_str().unwrap_or_default();
    run.kill();
    println!("  plugin      sent {name}");
    println!("              and was killed (kill -9)");
    controller.resume();
    let run = plugin.run();
    let user = csr["spec"]["username"].clone();
    let of_machine = |csr: &&serde_json::Value| csr["spec"]["username"] == user;
    let count = cluster.csrs().iter().filter(of_machine).count();
    println!(
        "  plugin      next run: resumes the request; requests from {machine} in total: {count}"
    );
    told(&run) && count == 1
}

fn attacks(
    cluster: &Cluster,
    controller: &Controller,
    victim: &str,
    stock: Vec<&'static str>,
) -> bool {
    println!("\n== Attacks ==");
    println!("  an attacker holds the bootstrap tokens of {LEAKED}, which has not joined, and of");
    println!("  {JOINED}, which has joined, and requests:");
    let mut rows = Vec::new();
    let mut met = 0;
    let mut as_expected = true;
    for (attack, stock) in ATTACKS.iter().zip(stock) {
        let waits = matches!(attack.expected, Expected::Waits(_));
        let attacker = Attacker::holding(cluster, attack.token).expecting_no_outcome(waits);
        let verdict = attack.on_us(&attacker, victim);
        println!("  {}", attack.what);
        let here = match &verdict {
            Verdict::Refused {
                reason, message, ..
            } => {
                let decision = controller.decision(|fields| fields["reason"] == reason.as_str());
                let check = decision
                    .checks
                    .last()
                    .map_or("", |check| check.name.as_str());
                println!(
                    "      refused by the check \"{check}\" after {:.1} ms: {reason}",
                    decision.millis
                );
                println!("      the requester reads: {message}");
                println!("      the operator reads:  {}", decision.detail);
                verdict.summary()
            }
            Verdict::Issued(certificate) => {
                println!("      issued: {}", describe(certificate));
                verdict.summary()
            }
            Verdict::Undecided => {
                let Expected::Waits(reason) = attack.expected else {
                    println!("      undecided");
                    as_expected = false;
                    continue;
                };
                let decision = controller.decision(|fields| fields["reason"] == reason);
                println!("      left waiting: {reason}");
                println!("      the operator reads:  {}", decision.detail);
                format!("waits: {reason}")
            }
        };
        if attack.as_expected(&verdict) {
            met += 1;
        } else {
            as_expected = false;
            println!("      EXPECTED {:?}", attack.expected);
        }
        rows.push((attack, stock, here));
    }
    println!();
    println!(
        "  {:<52} {:<12} here",
        "attack, with a leaked bootstrap token", "stock"
    );
    println!("  {:-<52} {:-<12} {:-<34}", "", "", "");
    for (attack, stock, here) in rows {
        let limit = match attack.expected {
            Expected::NotStopped => "  (insecure does not prevent this: aws and tpm do)",
            Expected::Denied(_) | Expected::Waits(_) => "",
        };
        println!("  {:<52} {stock:<12} {here}{limit}", attack.what);
    }
    attacker::sum_up(met, ATTACKS.len());
    as_expected
}

/// Starts a real kubelet, which joins with the plugin in its kubeconfig.
pub fn kubelet(plane: &ControlPlane, node: &str, plugin: &Plugin) {
    println!("\n== A real kubelet ==");
    let kubelet = plane
        .kubelet(node)
        .kubeconfig(plane.exec_kubeconfig(plugin.exec()))
        .start();
    kubelet.wait_until_ready();
    println!("$ kubectl get csr,nodes");
    let table = plane.kubectl().ok(["get", "csr,nodes"]);
    for line in table.lines() {
        println!("{line}");
    }
}

pub fn told(run: &Run) -> bool {
    match run.certificate() {
        Some(certificate) => {
            println!(
                "  plugin      prints the credential after {}: {}",
                millis(run.took),
                describe(&certificate)
            );
            true
        }
        None => {
            println!("  plugin      FAILED: {}", run.stderr());
            false
        }
    }
}

/// The subject and the expiry of a certificate, as openssl prints them.
pub fn describe(pem: &str) -> String {
    use std::io::Write as _;
    let mut openssl = Command::new("openssl")
        .args(["x509", "-noout", "-subject", "-enddate"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    openssl
        .stdin
        .take()
        .unwrap()
        .write_all(pem.as_bytes())
        .unwrap();
    let output = openssl.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .collect::<Vec<_>>()
        .join(", ")
}

pub fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}
