//! Measures joins on a real API server while one bootstrap token constantly creates requests.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Application, define_identities, is_issued};

use crate::controller;
use crate::report::{Suite, print_table};

/// The number of requests that one token creates.
const REQUESTS: usize = 60_000;

/// The number of concurrent requests.
const AT_ONCE: usize = 16;

/// The time limit for one join. If a join takes longer, the measurement ends.
const DEADLINE: Duration = Duration::from_mins(10);

/// The maximum time that another machine waits, in seconds.
const PATIENCE: f64 = 5.0;

const SECRET: &str = "0123456789abcdef";
const FLOODER: &str = "floods";

/// Measures the values, prints the table, and returns the values.
pub fn run(program: &Path) -> Suite {
    let plane = ControlPlane::start();
    plane.install_kubeadm_bindings();
    define_identities(plane.kubectl());
    let machines = ["alone", "meanwhile", "afterwards", "restarted"];
    let tokens: Vec<(String, String)> = machines
        .iter()
        .zip(0..)
        .map(|(name, index)| ((*name).to_owned(), format!("join{index:02}")))
        .collect();
    let flooder = plane.add_bootstrap_token(FLOODER, SECRET);
    let folder = tempfile::tempdir().unwrap();
    let files = controller::Files {
        kubeconfig: plane.admin_kubeconfig().to_owned(),
        ca_cert: plane.ca_cert_path(),
        ca_key: plane.ca_key_path(),
    };
    let start = || controller::start(program, &files, &tokens, folder.path());
    let join = |index: usize| {
        let (name, token) = &tokens[index];
        join(&plane, name, token)
    };

    let first = start();
    let alone = join(0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let filed = AtomicUsize::new(0);
    let kubeconfig = plane.bootstrap_kubeconfig(&flooder);
    let began = Instant::now();
    let (meanwhile, at) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| runtime.block_on(flood(&kubeconfig, &filed)));
        let is_half_way = || filed.load(Ordering::Relaxed) >= REQUESTS / 2 || flood.is_finished();
        poll(DEADLINE, || is_half_way().then_some(())).expect("half of the requests in time");
        let at = filed.load(Ordering::Relaxed);
        (join(1), at)
    });
    let took = began.elapsed();
    let afterwards = join(2);
    drop(first);
    let _second = start();
    let restarted = join(3);

    let mut suite = Suite::new("flood");
    let joins = [
        ("a join alone".to_owned(), alone, None),
        (
            format!("a join after {at} requests of another token, which goes on"),
            meanwhile,
            Some(PATIENCE),
        ),
        (
            format!("a join after {REQUESTS}"),
            afterwards,
            Some(PATIENCE),
        ),
        (
            format!("a join after {REQUESTS}, with the controller's start"),
            restarted,
            None,
        ),
    ];
    let mut rows = Vec::new();
    for (name, time, limit) in joins {
        rows.push(vec![name.clone(), format!("{:.2} s", time.as_secs_f64())]);
        suite.add(name, time.as_secs_f64(), "s", limit);
    }
    let rate = REQUESTS as f64 / took.as_secs_f64();
    rows.push(vec!["the flood".to_owned(), format!("{rate:.0} a second")]);
    println!();
    print_table(&["request created to issued", "time"], &rows);
    suite
}

/// Creates requests from unknown machines: each request waits, and is never completed.
async fn flood(kubeconfig: &Path, filed: &AtomicUsize) {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
    let requests: Api<CertificateSigningRequest> =
        Api::all(Client::try_from(config.await.unwrap()).unwrap());
    let next = AtomicUsize::new(0);
    let file = async || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= REQUESTS {
                return;
            }
            let name = format!("unknown-{number}");
            let provider_id = controller::provider_id(&name);
            let application = Application::claiming(&name, &provider_id, Provider::INSECURE, None);
            let request = serde_json::from_value(application.to_json()).unwrap();
            requests
                .create(&PostParams::default(), &request)
                .await
                .unwrap();
            filed.fetch_add(1, Ordering::Relaxed);
        }
    };
    futures::future::join_all((0..AT_ONCE).map(|_| file())).await;
}

/// The time from the creation of the request to its certificate.
fn join(plane: &ControlPlane, name: &str, token: &str) -> Duration {
    let token = plane.add_bootstrap_token(token, SECRET);
    let provider_id = controller::provider_id(name);
    let application = Application::claiming(name, &provider_id, Provider::INSECURE, None);
    let kubectl = plane.kubectl_with(plane.bootstrap_kubeconfig(&token));
    let field = format!("metadata.name={}", application.name());
    let mut watch = plane.kubectl().watch(&["csr", "--field-selector", &field]);
    let filed = Instant::now();
    kubectl.create_object(&application.to_json());
    loop {
        let event = watch
            .next(DEADLINE)
            .expect("the certificate is issued before the deadline");
        if is_issued(&event.object) {
            return filed.elapsed();
        }
    }
}
