//! The story, told as it happens.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Verb};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, Exec, KubeadmBinding,
};

use crate::attacker::{Attacker, BUILT_IN, Verdict, Wish};
use crate::attacks::{ATTACKS, Expected, LEAKED};
use crate::cluster::{self, Cluster};
use crate::controller::Controller;
use crate::plugin::{Plugin, Run};

const START: Duration = Duration::from_secs(20);

/// The story on an API server in this process; `false` if it went another way.
pub fn embedded() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start();
    println!("An API server in this process, the real controller, the real plugin.");
    let cluster = Cluster::Embedded(server);
    cluster.add_tokens();
    let controller = Controller::start(&cluster, folder.path());
    if let Cluster::Embedded(server) = &cluster {
        server.wait_for_request(Verb::Watch, 1, START);
    }
    let stock = ATTACKS
        .iter()
        .map(|attack| attack.stock.to_owned())
        .collect();
    let joined = join(&cluster, &controller, folder.path());
    let resumed = killed_in_the_middle(&cluster, &controller, folder.path());
    let refused = attacks(&cluster, &controller, &joined.1, stock);
    println!(
        "\nThe column \"stock\" is what real Kubernetes answered: make demo CONTROL_PLANE=real tries it again."
    );
    joined.0 && resumed && refused
}

/// The story on real Kubernetes; `false` if it went another way.
pub fn real() -> bool {
    let folder = tempfile::tempdir().unwrap();
    println!("Real etcd, kube-apiserver, kube-controller-manager and kubelet.");
    let plane = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    plane.install_kubeadm_bindings();
    let cluster = Cluster::Real(Box::new(plane));
    cluster.add_tokens();
    let stock = stock_bindings(&cluster);
    let Cluster::Real(plane) = &cluster else {
        return false;
    };
    plane.remove_binding(KubeadmBinding::NodeAutoapproveBootstrap);
    plane.remove_binding(KubeadmBinding::NodeAutoapproveCertificateRotation);
    println!("\nkubeadm's two auto-approval bindings are removed.");
    let attacker = Attacker::new(
        &cluster.server(),
        &cluster.ca_pem(),
        &cluster::token(LEAKED),
    );
    let closed = attacker.ask(&Wish::node("control-plane-1", BUILT_IN));
    println!("  the same request again: {}", closed.summary());

    let controller = Controller::start(&cluster, folder.path());
    let joined = join(&cluster, &controller, folder.path());
    let resumed = killed_in_the_middle(&cluster, &controller, folder.path());
    let refused = attacks(&cluster, &controller, &joined.1, stock.0);
    kubelet(plane, &cluster, folder.path());
    stock.1 && matches!(closed, Verdict::Undecided) && joined.0 && resumed && refused
}

/// What the attacks do on a cluster as kubeadm leaves it, and whether the first of them did what it
/// is feared for.
fn stock_bindings(cluster: &Cluster) -> (Vec<String>, bool) {
    println!("\n== Stock: kubeadm's bindings, Kubernetes' own signer ==");
    println!("  an attacker holds the bootstrap token of {LEAKED}, and asks {BUILT_IN} for");
    let attacker = Attacker::new(
        &cluster.server(),
        &cluster.ca_pem(),
        &cluster::token(LEAKED),
    );
    let (victim, _) = Wish::node("worker-1", BUILT_IN).request();
    let verdicts: Vec<Verdict> = ATTACKS
        .iter()
        .map(|attack| attack.on_stock(&attacker, &victim))
        .collect();
    for (attack, verdict) in ATTACKS.iter().zip(&verdicts) {
        println!("  {:<45} {}", attack.what, verdict.summary());
    }
    let issued = match verdicts.first() {
        Some(Verdict::Issued(certificate)) => {
            println!(
                "  the first one is the attacker's now: {}",
                describe(certificate)
            );
            true
        }
        _ => false,
    };
    (verdicts.iter().map(Verdict::summary).collect(), issued)
}

/// worker-1 joins: whether it did, and the name of its request.
fn join(cluster: &Cluster, controller: &Controller, folder: &Path) -> (bool, String) {
    println!("\n== worker-1 joins ==");
    let plugin = Plugin::new(cluster, folder, "worker-1");
    let run = plugin.run();
    if run.certificate().is_none() {
        return (told(&run), String::new());
    }
    let csr = cluster.wait_for_request_of("worker-1");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&csr["metadata"]["name"]);
    println!("  kubelet     runs kubelet-authenticator-insecure, as client-go does");
    println!(
        "  plugin      has no credential: a new key, and a request for system:node:worker-1, saved, then sent"
    );
    println!("              as {name}");
    println!(
        "  API server  {} asks {}",
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
    let joined = told(&run);
    let again = plugin.run();
    println!(
        "  plugin      asked again: the same credential from its store in {}",
        millis(again.took)
    );
    let same = again.certificate().is_some() && again.certificate() == run.certificate();
    (joined && same && decision.outcome == "issued", name)
}

/// kill -9 while the request is open: the next run finishes the same request.
fn killed_in_the_middle(cluster: &Cluster, controller: &Controller, folder: &Path) -> bool {
    println!("\n== worker-3 is killed in the middle of its enrolment ==");
    let plugin = Plugin::new(cluster, folder, "worker-3");
    controller.pause();
    let mut child = plugin.start();
    let csr = cluster.wait_for_request_of("worker-3");
    let name = csr["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    child.kill().unwrap();
    child.wait().unwrap();
    println!("  plugin      sent {name}, and got kill -9");
    controller.resume();
    let run = plugin.run();
    let user = csr["spec"]["username"].clone();
    let count = cluster
        .csrs()
        .iter()
        .filter(|csr| csr["spec"]["username"] == user)
        .count();
    println!(
        "  plugin      next run: takes the request up again; requests of worker-3 in all: {count}"
    );
    told(&run) && count == 1
}

fn attacks(cluster: &Cluster, controller: &Controller, victim: &str, stock: Vec<String>) -> bool {
    println!("\n== Attacks ==");
    println!(
        "  an attacker holds the bootstrap token of {LEAKED}, which has not joined, and asks for"
    );
    let attacker = Attacker::new(
        &cluster.server(),
        &cluster.ca_pem(),
        &cluster::token(LEAKED),
    );
    let mut rows = Vec::new();
    let mut as_expected = true;
    for (attack, stock) in ATTACKS.iter().zip(stock) {
        let verdict = attack.on_us(&attacker, victim);
        println!("  {}", attack.what);
        match &verdict {
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
            }
            Verdict::Issued(certificate) => println!("      issued: {}", describe(certificate)),
            Verdict::Undecided => println!("      undecided"),
        }
        if !attack.as_expected(&verdict) {
            as_expected = false;
            println!("      EXPECTED {:?}", attack.expected);
        }
        rows.push((attack.what, stock, verdict.summary(), attack.expected));
    }
    println!(
        "\n  {:<45} {:<12} here",
        "attack, with a leaked bootstrap token", "stock"
    );
    println!("  {:-<45} {:-<12} {:-<32}", "", "", "");
    for (what, stock, here, expected) in rows {
        let limit = if expected == Expected::NotStopped {
            "  (insecure cannot tell: aws and tpm will)"
        } else {
            ""
        };
        println!("  {what:<45} {stock:<12} {here}{limit}");
    }
    as_expected
}

/// A real kubelet joins with our plugin in its kubeconfig.
fn kubelet(plane: &ControlPlane, cluster: &Cluster, folder: &Path) {
    println!("\n== A real kubelet ==");
    let plugin = Plugin::new(cluster, folder, "control-plane-1");
    let exec = plugin.env().into_iter().fold(
        Exec::new(Plugin::path()).provide_cluster_info(),
        |exec, (name, value)| exec.env(name, value),
    );
    let kubelet = plane
        .kubelet("control-plane-1")
        .kubeconfig(plane.exec_kubeconfig(exec))
        .start();
    kubelet.wait_until_ready();
    println!("$ kubectl get csr,nodes");
    let table = plane.kubectl().ok(["get", "csr,nodes"]);
    for line in table.lines() {
        println!("{line}");
    }
}

fn told(run: &Run) -> bool {
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

/// Subject and end of a certificate, in openssl's words.
fn describe(pem: &str) -> String {
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

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}
