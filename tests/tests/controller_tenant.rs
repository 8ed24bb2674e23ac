//! Tests of a tenant's hostile API server, to which the controller connects with the tenant's kubeconfig.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Command;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, ListParams};
use kubelet_attestation::errors::error_chain;
use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Kubeconfig, Route, Times};
use kubelet_authenticator_test_support::process::Scratch;
use node_attestation_runtime::capi::{ObjectKey, TenantKubeconfig};
use node_attestation_runtime::client::EgressPolicy;

/// Lists requests with this kubeconfig. Returns the number of requests, or the error.
async fn list(kubeconfig: Kubeconfig) -> Result<usize, String> {
    let text = kubeconfig.to_yaml();
    let mut egress = EgressPolicy::STRICT;
    egress.insecure_allow_loopback = true;
    let kubeconfig = TenantKubeconfig::parse(text.as_bytes(), egress).unwrap();
    let access = kubeconfig
        .access(&ObjectKey::new("tenant-a", "prod-1"))
        .unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(access.client().clone());
    let list = requests.list(&ListParams::default()).await;
    list.map(|list| list.items.len())
        .map_err(|error| error_chain(&error))
}

fn admin(server: &ApiServer) -> Kubeconfig {
    let admin = server.admin_certificate();
    server.kubeconfig().client_certificate(&admin)
}

#[tokio::test]
async fn the_client_certificate_of_a_kubeconfig_authenticates() {
    let server = ApiServer::start();

    assert_eq!(list(admin(&server)).await, Ok(0));
}

#[test]
fn the_environment_proxy_is_not_used_for_workload_clusters() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let mut reached = Command::new(std::env::current_exe().unwrap());
    reached.args([
        "--exact",
        "the_client_certificate_of_a_kubeconfig_authenticates",
    ]);
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        reached.env(name, &url);
    }
    for name in ["NO_PROXY", "no_proxy"] {
        reached.env_remove(name);
    }

    let output = reached.output().unwrap();

    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}"
    );
    let called = proxy.accept().map_err(|error| error.kind());
    assert_eq!(called.unwrap_err(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_redirect_to_another_server_is_not_followed() {
    let server = ApiServer::start();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let to = format!("https://{}", other.local_addr().unwrap());
    server.inject(Route::list(), Times::once(), Fault::Redirect { to });

    assert!(list(admin(&server)).await.is_err());

    let called = other.accept().map_err(|error| error.kind());
    assert_eq!(called.unwrap_err(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn the_server_is_trusted_only_with_the_expected_ca_and_name() {
    let (server, other) = (ApiServer::start(), ApiServer::start());

    let another_ca = list(admin(&server).ca_data(other.ca_pem())).await;
    assert!(another_ca.unwrap_err().contains("invalid peer certificate"));
    let another_name = list(admin(&server).tls_server_name("other.example.com")).await;
    assert!(
        another_name
            .unwrap_err()
            .contains("invalid peer certificate")
    );
}

/// The memory limit in KiB for a process that connects to 20 hostile API servers.
const MAX_RESIDENT_KIB: u64 = 400 * 1024;

/// The environment variable that contains the path of the kubeconfig for the measured process.
const KUBECONFIG: &str = "HOSTILE_API_SERVER";

#[test]
fn huge_lists_from_20_api_servers_do_not_exhaust_memory() {
    if let Ok(path) = std::env::var(KUBECONFIG) {
        return read_of_twenty(&path);
    }
    let server = ApiServer::start();
    let element = "{},".repeat(1024 * 1024);
    let body = format!(r#"{{"metadata":{{}},"items":[{element}{{}}]}}"#);
    let fault = Fault::Answer {
        code: 200,
        content_type: "application/json".to_owned(),
        body: body.into_bytes(),
    };
    server.inject(Route::list(), Times::always(), fault);
    let scratch = Scratch::new("hostile");
    let path = scratch.write("kubeconfig", admin(&server).to_yaml());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("huge_lists_from_20_api_servers_do_not_exhaust_memory")
        .env(KUBECONFIG, path)
        .output()
        .unwrap();

    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("1 passed"), "{told}");
}

/// Lists the requests in 20 clusters, for six signers in each cluster at the same time, and checks the peak memory.
fn read_of_twenty(kubeconfig: &str) {
    let text = std::fs::read_to_string(kubeconfig).unwrap();
    let mut egress = EgressPolicy::STRICT;
    egress.insecure_allow_loopback = true;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clusters: Vec<_> = (0..20)
        .map(|_| {
            let kubeconfig = TenantKubeconfig::parse(text.as_bytes(), egress).unwrap();
            let _entered = runtime.enter();
            kubeconfig
                .access(&ObjectKey::new("tenant-a", "prod-1"))
                .unwrap()
                .client()
                .clone()
        })
        .collect();
    runtime.block_on(async {
        let lists = clusters.iter().flat_map(|client| {
            (0..6).map(|_| async {
                let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
                requests.list(&ListParams::default().limit(16)).await
            })
        });
        for list in futures::future::join_all(lists).await {
            let error = error_chain(&list.unwrap_err());
            assert!(error.contains("the API server's response"), "{error}");
        }
    });
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak
        .and_then(|peak| peak.trim().strip_suffix(" kB"))
        .unwrap();
    let peak: u64 = peak.trim().parse().unwrap();
    assert!(peak < MAX_RESIDENT_KIB, "{peak} KiB");
}
