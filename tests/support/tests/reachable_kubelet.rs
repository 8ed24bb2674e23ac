//! Kubelets that the API server talks to, over the serving certificate that they asked for.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, DEADLINE, User,
};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::poll;
use serde_json::Value;

/// Runs in a process of its own the test that is then killed.
const HOLD: &str = "REACHABLE_KUBELET_HOLD";

static CLUSTER: LazyLock<ControlPlane> = LazyLock::new(|| {
    ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start()
});

fn start(name: &str) -> Kubelet {
    let node = CLUSTER.client_certificate(&format!("system:node:{name}"), Some("system:nodes"));
    CLUSTER
        .kubelet(name)
        .kubeconfig(CLUSTER.kubeconfig(User::Certificate(node)))
        .server_tls_bootstrap()
        .reachable()
        .start()
}

fn wait_for_serving_csr(name: &str) -> Value {
    let user = format!("system:node:{name}");
    CLUSTER.wait_for_csr(&format!("of {name} for serving"), |csr| {
        csr["spec"]["username"] == *user
            && csr["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    })
}

#[test]
fn the_api_server_reaches_a_kubelet_once_its_serving_certificate_is_approved() {
    let kubelet = start("serving-1");
    let node = kubelet.wait_until_registered();
    let csr = wait_for_serving_csr("serving-1");
    let addresses = &node["status"]["addresses"];
    assert_eq!(
        addresses[0]["address"],
        kubelet.address().ip().to_string(),
        "{addresses}"
    );

    let refused = kubelet.healthz_through_the_api_server();
    assert!(!refused.status.success(), "{refused:?}");

    let name = csr["metadata"]["name"].as_str().unwrap();
    CLUSTER.kubectl().ok(["certificate", "approve", name]);
    let answer = poll(DEADLINE, || {
        let answer = kubelet.healthz_through_the_api_server();
        answer.status.success().then_some(answer.stdout)
    });
    assert_eq!(answer.as_deref(), Some(&b"ok"[..]), "{}", kubelet.log());
}

#[test]
fn a_kubelet_whose_certificate_no_one_vouches_for_is_not_reached() {
    let node = CLUSTER.client_certificate("system:node:self-signed", Some("system:nodes"));
    let mut kubelet = CLUSTER
        .kubelet("self-signed")
        .kubeconfig(CLUSTER.kubeconfig(User::Certificate(node)))
        .reachable()
        .start();
    kubelet.wait_until_registered();
    kubelet.wait_for_log("Started kubelet");
    kubelet.metrics();

    let refused = kubelet.healthz_through_the_api_server();

    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("failed to verify certificate"), "{stderr}");
}

#[test]
fn two_kubelets_have_addresses_of_their_own_and_leave_none_behind() {
    let (one, other) = (start("own-1"), start("own-2"));
    let addresses = [&one, &other].map(|kubelet| *kubelet.address().ip());

    assert_ne!(addresses[0], addresses[1]);
    drop((one, other));
    for address in addresses {
        TcpListener::bind((address, 0)).unwrap_err();
    }
}

#[test]
fn the_address_goes_with_a_test_that_is_killed() {
    if std::env::var_os(HOLD).is_some() {
        let builder = ControlPlane::start().kubelet("held").reachable();
        println!("\nholds {}", builder.ip());
        std::thread::park();
    }
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "the_address_goes_with_a_test_that_is_killed",
        ])
        .env(HOLD, "yes")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(test.stdout.take().unwrap());
    let address: std::net::Ipv4Addr = std::io::BufRead::lines(output)
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("holds ")?.parse().ok())
        .expect("it says its address");
    TcpListener::bind((address, 0)).unwrap();

    test.kill().unwrap();
    test.wait().unwrap();

    let gone = poll(DEADLINE, || TcpListener::bind((address, 0)).err());
    assert!(gone.is_some(), "{address} is still there");
}
