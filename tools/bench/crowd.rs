//! A tenant with many Machines and MachinePools. For each request from the tenant's cluster, the controller looks up
//! the token among all of these objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kubelet_authenticator_tests::controller::Application;
use kubelet_authenticator_tests::scrape::Diagnostics;
use serde_json::{Value, json};

use crate::cluster_api::{CLUSTER_API, object};
use crate::simulation::{Simulation, Tenant, provider_id};

/// The number of Machines, and of MachinePools.
const OBJECTS: usize = 5000;

/// The length of the names of these Machines and MachinePools.
const NAME_LEN: usize = 200;

/// The pause between two requests, and between two probes.
const PAUSE: Duration = Duration::from_millis(100);

/// A thread that runs until it is dropped.
#[derive(Debug)]
pub struct Background<T> {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the thread.
    pub fn start(run: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        Self {
            is_over,
            thread: std::thread::spawn(move || run(&ends)),
        }
    }

    /// Stops the thread, and returns its result.
    pub fn end(self) -> T {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

/// Creates the objects, and then sends requests in the background until the returned thread is stopped. Returns the
/// number of requests.
pub fn turn(simulation: &Simulation, tenant: Tenant) -> Background<usize> {
    for number in 0..OBJECTS {
        simulation.management.put(machine(&tenant.name, number));
        simulation.management.put(pool(&tenant.name, number));
    }
    request(tenant)
}

/// Sends requests with unknown tokens in the background. Returns the number of requests at the end.
pub fn request(tenant: Tenant) -> Background<usize> {
    Background::start(move |is_over| {
        let mut filed = 0;
        while !is_over.load(Ordering::Relaxed) {
            let name = format!("crowd-{filed}");
            let ca = tenant.server.ca_pem();
            let application = Application::stamped(&name, &provider_id(&name), ca);
            // No Machine has this token.
            application
                .with_token(&format!("z{filed:05}"))
                .put(&tenant.server);
            filed += 1;
            std::thread::sleep(PAUSE);
        }
        filed
    })
}

/// Probes `/healthz` in the background. When it is stopped, returns the longest response time.
pub fn probe(diagnostics: Diagnostics) -> Background<Duration> {
    Background::start(move |is_over| {
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let answer = diagnostics.probe("/healthz").expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.body);
            longest = longest.max(asked.elapsed());
            std::thread::sleep(PAUSE);
        }
        longest
    })
}

/// For each lock that tenants share, the longest time in milliseconds for which the controller held it.
pub fn lock_times(file: &std::path::Path) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(file).expect("the controller's measurements");
    serde_json::from_str(&text).expect("times by lock")
}

/// A Machine with bootstrap data. Its KubeadmConfig and its pool do not exist.
fn machine(cluster: &str, number: usize) -> Value {
    let name = long("m", number);
    let fields = json!({
        "spec": {
            "clusterName": cluster,
            "bootstrap": {
                "configRef": {
                    "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "missing",
                },
                "dataSecretName": name,
            },
        },
        "status": {"initialization": {"bootstrapDataSecretCreated": true}},
    });
    let mut machine = object((CLUSTER_API, "Machine"), (cluster, cluster, &name), fields);
    machine["metadata"]["labels"]["cluster.x-k8s.io/pool-name"] = json!(format!("zz-{number}"));
    machine
}

fn pool(cluster: &str, number: usize) -> Value {
    let name = long("p", number);
    let fields =
        json!({"spec": {"clusterName": cluster, "template": {"spec": {"clusterName": cluster}}}});
    object(
        (CLUSTER_API, "MachinePool"),
        (cluster, cluster, &name),
        fields,
    )
}

fn long(kind: &str, number: usize) -> String {
    format!("{kind}{number:0>width$}", width = NAME_LEN - kind.len())
}
