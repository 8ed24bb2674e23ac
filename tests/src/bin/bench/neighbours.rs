//! Clusters of one controller, half of whose API servers answer whatever takes the most memory, and
//! what the other half notices of it. The management cluster's API server is real; those of the
//! workload clusters run in this process.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Route, Times, Verb};
use kubelet_authenticator_test_support::pki::traditional_key;
use kubelet_authenticator_tests::controller::{Application, is_answered, is_issued};
use kubelet_authenticator_tests::fleet::{Manager, management};
use kubelet_authenticator_tests::management::Management;
use serde_json::{Value, json};

use crate::cluster_api::{self, CLUSTER_API, INFRASTRUCTURE, NewMachine, reference};
use crate::measure::{peak_memory, percentile};
use crate::report::{Suite, print_table};

/// Clusters that stay as they are, and as many that turn.
const NEIGHBOURS: usize = 20;

/// Joins of each good cluster, one after another, before the others turn, and as many after.
const ROUNDS: usize = 10;

/// Between two rounds, so that they see more than one state of the hostile clusters.
const BETWEEN: Duration = Duration::from_secs(3);

/// The time limit of one join; beyond it the measurement ends.
const DEADLINE: Duration = Duration::from_secs(120);

/// The most that the controller may have in memory, in MiB.
const MAX_RESIDENT: f64 = 400.0;

/// The most that joins may take, of what they usually take.
const MAX_SLOWER: f64 = 2.0;

/// Elements that cost three bytes each to send.
const ELEMENTS: usize = 640_000;

/// Measures, prints the table, and returns the values.
pub fn run() -> Suite {
    let management = management();
    let tenants: Vec<Tenant> = (0..2 * NEIGHBOURS).map(Tenant::new).collect();
    install(&management, &tenants);
    let manager = Manager::null(&management, &[]);
    let (good, hostile) = tenants.split_at(NEIGHBOURS);
    // Whatever a first request costs.
    joins(good, 0);

    let mut usual = rounds(good, 1..=ROUNDS);
    let resident_before = peak_memory(manager.process.pid());
    let asked_before: Vec<usize> = hostile.iter().map(Tenant::asked).collect();
    for (tenant, number) in hostile.iter().zip(0..) {
        tenant.turn(number);
    }
    let mut beside = rounds(good, ROUNDS + 1..=2 * ROUNDS);
    let resident = peak_memory(manager.process.pid());

    let spread = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        [50, 100].map(|percent| percentile(times, percent).as_secs_f64() * 1e3)
    };
    let (usual, beside) = (spread(&mut usual), spread(&mut beside));
    // Or nothing was measured.
    let asked = hostile.iter().zip(asked_before);
    let asked: Vec<usize> = asked.map(|(it, before)| it.asked() - before).collect();
    assert!(asked.iter().all(|asked| *asked > 0), "{asked:?}");
    let asked: usize = asked.iter().sum();
    let mut suite = Suite::new("neighbours");
    let mut rows = Vec::new();
    for (name, value, unit, limit) in [
        ("joins beside good neighbours, median", usual[0], "ms", None),
        ("joins beside good neighbours, most", usual[1], "ms", None),
        ("joins beside hostile ones, median", beside[0], "ms", None),
        ("joins beside hostile ones, most", beside[1], "ms", None),
        (
            "median beside hostile ones, of the usual",
            beside[0] / usual[0],
            "",
            Some(MAX_SLOWER),
        ),
        (
            "most beside hostile ones, of the usual",
            beside[1] / usual[1],
            "",
            Some(MAX_SLOWER),
        ),
        (
            "peak memory beside good neighbours",
            resident_before,
            "MiB",
            None,
        ),
        (
            "peak memory beside hostile ones",
            resident,
            "MiB",
            Some(MAX_RESIDENT),
        ),
        (
            "lists and watches of hostile API servers",
            asked as f64,
            "",
            None,
        ),
    ] {
        rows.push(vec![name.to_owned(), format!("{value:.1} {unit}")]);
        suite.add(name, value, unit, limit);
    }
    println!();
    print_table(
        &["one controller, 20 of 40 clusters hostile", "value"],
        &rows,
    );
    suite
}

fn rounds(tenants: &[Tenant], rounds: impl Iterator<Item = usize>) -> Vec<Duration> {
    let round = |round| {
        std::thread::sleep(BETWEEN);
        joins(tenants, round)
    };
    rounds.flat_map(round).collect()
}

/// One machine of each cluster joins, all at once; how long each takes.
fn joins(tenants: &[Tenant], round: usize) -> Vec<Duration> {
    let applications = tenants.iter().map(|tenant| tenant.application(round));
    let applications: Vec<Application> = applications.collect();
    let filed = Instant::now();
    let mut open: Vec<(&Tenant, String)> = tenants
        .iter()
        .zip(&applications)
        .map(|(tenant, application)| (tenant, application.put(&tenant.server)))
        .collect();
    let mut times = Vec::new();
    while !open.is_empty() {
        open.retain(|(tenant, name)| {
            let csr = tenant.server.csr(name).unwrap();
            if !is_answered(&csr) {
                return true;
            }
            assert!(is_issued(&csr), "{csr:#}");
            times.push(filed.elapsed());
            false
        });
        let waiting: Vec<&str> = open
            .iter()
            .map(|(tenant, _)| tenant.name.as_str())
            .collect();
        assert!(filed.elapsed() < DEADLINE, "no answer: {waiting:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    times
}

/// A cluster, and its API server in this process.
struct Tenant {
    name: String,
    number: usize,
    server: ApiServer,
}

impl Tenant {
    fn new(number: usize) -> Self {
        Self {
            name: format!("tenant-{number}"),
            number,
            server: ApiServer::start(),
        }
    }

    /// The number of its lists and watches so far.
    fn asked(&self) -> usize {
        let mut requests = self.server.requests();
        requests.retain(|request| matches!(request.verb, Verb::List | Verb::Watch));
        requests.len()
    }

    fn machine(&self, round: usize) -> String {
        format!("{}-{round}", self.name)
    }

    fn provider_id(&self, round: usize) -> String {
        format!("generic:///{}", self.machine(round))
    }

    fn token(&self, round: usize) -> String {
        format!("t{:02}{round:03}", self.number)
    }

    fn application(&self, round: usize) -> Application {
        let ca = self.server.ca_pem();
        let application = Application::stamped(&self.machine(round), &self.provider_id(round), ca);
        application.with_token(&self.token(round))
    }

    /// From now on every list or every watch answers with what takes much more memory than it has
    /// bytes.
    fn turn(&self, number: usize) {
        let list =
            |items: &str| format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#);
        let elements = "{},".repeat(ELEMENTS) + "{}";
        let (verb, body) = match number % 4 {
            0 => (Verb::List, list(&elements)),
            1 => {
                let metadata = format!(r#"{{"name":"x","managedFields":[{elements}]}}"#);
                (Verb::List, list(&format!(r#"{{"metadata":{metadata}}}"#)))
            }
            2 => {
                let subjects = format!(r#"{{"metadata":{{"name":"x"}},"subjects":[{elements}]}}"#);
                (Verb::List, list(&subjects))
            }
            _ => {
                let metadata = format!(r#"{{"name":"x","managedFields":[{elements}]}}"#);
                let object =
                    format!(r#"{{"metadata":{metadata},"spec":{{"groups":[{elements}]}}}}"#);
                (
                    Verb::Watch,
                    format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n"),
                )
            }
        };
        let fault = Fault::Answer {
            code: 200,
            content_type: "application/json".to_owned(),
            body: body.into_bytes(),
        };
        self.server
            .inject(Route::verb(verb), Times::always(), fault);
        self.server.drop_connections();
    }

    /// The Cluster, its Machines, and what says how its nodes are authenticated.
    fn objects(&self) -> (Vec<Value>, Vec<Value>) {
        let name = &self.name;
        let object = |api_version: &str, kind: &str, object: &str, fields: Value| {
            cluster_api::object((api_version, kind), (name, name, object), fields)
        };
        let secret = |purpose: &str, data: Value| {
            let fields = json!({"type": "cluster.x-k8s.io/secret", "data": data});
            object("v1", "Secret", &format!("{name}-{purpose}"), fields)
        };
        let address = self.server.address();
        let endpoint = json!({"host": address.ip().to_string(), "port": address.port()});
        let admin = self.server.admin_certificate();
        let kubeconfig = self
            .server
            .kubeconfig()
            .client_certificate(&admin)
            .to_yaml();
        let ca = self.server.client_ca();
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            object(
                CLUSTER_API,
                "Cluster",
                name,
                json!({"spec": {
                    "controlPlaneEndpoint": endpoint,
                    "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/24"]}},
                    "infrastructureRef": reference(INFRASTRUCTURE, "GenericCluster", name),
                }}),
            ),
            object(
                &format!("{INFRASTRUCTURE}/v1beta2"),
                "GenericCluster",
                name,
                json!({
                    "spec": {"controlPlaneEndpoint": endpoint},
                }),
            ),
            secret("kubeconfig", json!({"value": STANDARD.encode(kubeconfig)})),
            secret(
                "ca",
                json!({
                    "tls.crt": STANDARD.encode(&ca.certificate_pem),
                    "tls.key": STANDARD.encode(traditional_key(&ca.key_pem)),
                }),
            ),
            object(
                "attestation.cluster.x-k8s.io/v1alpha1",
                "KubeletAuthentication",
                name,
                json!({
                    "spec": {"clusterName": name, "authorizedAttestors": ["aws"]},
                }),
            ),
        ];
        let initialized = json!({"status": {"initialization": {
            "infrastructureProvisioned": true, "controlPlaneInitialized": true,
        }}});
        let mut statuses = vec![object(CLUSTER_API, "Cluster", name, initialized)];
        let rounds = if self.number < NEIGHBOURS {
            2 * ROUNDS
        } else {
            0
        };
        for round in 0..=rounds {
            let machine = NewMachine {
                cluster: name,
                name: &self.machine(round),
                provider_id: &self.provider_id(round),
                token: &self.token(round),
                server: &address.to_string(),
            };
            let (created, written) = machine.objects(name);
            objects.extend(created);
            statuses.extend(written);
        }
        (objects, statuses)
    }
}

fn install(management: &Management, tenants: &[Tenant]) {
    let (objects, statuses): (Vec<_>, Vec<_>) = tenants.iter().map(Tenant::objects).unzip();
    management.kubectl().create_objects(&objects.concat());
    management.kubectl().apply_statuses(&statuses.concat());
}
