//! Measures certificates per second on real API servers: the controller, kube-controller-manager's approver and signer,
//! and a client that makes only the controller's writes. Finally, measures the controller while connections are lost
//! and the leader stops.

mod breaking_proxy;
mod ideal_client;
mod load;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, DEADLINE};
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use kubelet_authenticator_tests::controller::Application;
use kubelet_authenticator_tests::fleet::{authorize, management};
use kubelet_authenticator_tests::management::{Management, WorkloadCluster, workload_kubeconfig};
use kubelet_authenticator_tests::program;
use node_attestation_runtime::machine_conditions::NODE_ATTESTED;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::breaking_proxy::BreakingProxy;
use self::load::Request;
use crate::cluster_api::NewMachine;
use crate::measure::{peak_memory, percentile, processor_time, reset_peak_memory};
use crate::report::{Suite, print_table};

/// The number of machines that join in each measurement.
const MACHINES: usize = 2_000;

/// The number of requests to kube-controller-manager with its default limits, with which it processes ten requests per
/// second.
const FEW: usize = 300;

/// The number of times that all connections to both API servers are closed.
const BREAKS: u32 = 35;

/// The pause between two of these interruptions.
const BETWEEN: Duration = Duration::from_millis(500);

/// The time after the last certificate within which a controller completes its remaining work.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// The minimum ratio of the controller's rate to the ideal client's rate.
const LEAST_OF_IDEAL: f64 = 0.9;

/// The minimum ratio of the controller's rate to the rate of kube-controller-manager with its default limits.
const LEAST_OF_DEFAULT: f64 = 15.0;

const CLUSTER: &str = "throughput";
/// The controller's name in both API servers and in Events.
const USER: &str = "node-attestation-controller";
const NAMESPACE: &str = "default";
const OTHER_LIMITS: [&str; 2] = ["--kube-api-qps=100000", "--kube-api-burst=100000"];

/// The results of one measurement.
struct Row {
    name: String,
    rate: f64,
    p50: Duration,
    p99: Duration,
    processor: Duration,
    peak: f64,
}

/// Measures the values, prints the table, and returns the values.
pub fn run() -> Suite {
    let runtime = Runtime::new().unwrap();
    let management = management();
    let cluster = management.cluster(CLUSTER).controllers(Controllers::None);
    let cluster = cluster.create();
    let world = World {
        runtime,
        management,
        cluster,
    };
    world.create_machines(0..MACHINES);
    let spec = json!({});
    let authentication = authorize(&world.management, &world.cluster, &["aws"], spec);

    let controller = Controller::start(world.management_kubeconfig(None).as_path());
    authentication.wait_until_ready(world.management.kubectl());
    let requests = world.requests(0..MACHINES);
    let before = world.calls();
    let ours = world.measure(
        "node-attestation-controller",
        &controller.process,
        &requests,
    );
    let calls = difference(&world.calls(), &before);
    drop(controller);

    let ideal = world.ideal(&calls);
    let default = stock(&world.runtime, "kube-controller-manager", FEW, &[]);
    let unlimited = stock(
        &world.runtime,
        "kube-controller-manager without limits",
        MACHINES,
        &OTHER_LIMITS,
    );
    let disturbed = world.disturbed();

    let mut suite = Suite::new("throughput");
    let mut rows = Vec::new();
    for row in [&ours, &ideal, &default, &unlimited] {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let Row { name, .. } = row;
        rows.push(vec![
            name.clone(),
            format!("{:.0}", row.rate),
            format!("{:.0}", ms(row.p50)),
            format!("{:.0}", ms(row.p99)),
            format!("{:.2}", ms(row.processor)),
            format!("{:.0}", row.peak),
        ]);
        suite.add(format!("{name}: requests a second"), row.rate, "1/s", None);
        suite.add(
            format!("{name}: created to issued, p50"),
            ms(row.p50),
            "ms",
            None,
        );
        suite.add(
            format!("{name}: created to issued, p99"),
            ms(row.p99),
            "ms",
            None,
        );
        let processor = ms(row.processor);
        suite.add(
            format!("{name}: processor time a request"),
            processor,
            "ms",
            None,
        );
        suite.add(format!("{name}: peak memory"), row.peak, "MiB", None);
    }
    println!();
    let header = [
        "2,000 joins at once",
        "requests a second",
        "p50, ms",
        "p99, ms",
        "processor time a request, ms",
        "peak memory, MiB",
    ];
    print_table(&header, &rows);

    let ratios = [
        (
            "the ideal client's rate, of the controller's",
            ideal.rate / ours.rate,
            1.0 / LEAST_OF_IDEAL,
        ),
        (
            "the rate of kube-controller-manager with default limits, of the controller's",
            default.rate / ours.rate,
            1.0 / LEAST_OF_DEFAULT,
        ),
        (
            "the controller's processor time a request, of kube-controller-manager's",
            ours.processor.as_secs_f64() / unlimited.processor.as_secs_f64(),
            1.0,
        ),
        (
            "requests lost or answered twice, with 35 breaks and a new leader",
            disturbed as f64,
            0.0,
        ),
    ];
    let mut rows = Vec::new();
    for (name, value, limit) in ratios {
        rows.push(vec![
            name.to_owned(),
            format!("{value:.2}"),
            format!("{limit:.2}"),
        ]);
        suite.add(name, value, "", Some(limit));
    }
    println!();
    print_table(&["", "value", "limit"], &rows);
    println!();
    let rows: Vec<Vec<String>> = calls
        .into_iter()
        .map(|(what, count)| {
            let each = count / MACHINES as f64;
            suite.add(format!("calls a request: {what}"), each, "", None);
            vec![what, format!("{each:.3}")]
        })
        .collect();
    print_table(&["calls of both API servers", "a request"], &rows);
    suite
}

/// A management cluster and one of its clusters.
struct World {
    runtime: Runtime,
    management: Management,
    cluster: WorkloadCluster,
}

impl World {
    fn workload(&self) -> &ControlPlane {
        self.cluster.control_plane()
    }

    fn machine(number: usize) -> (String, String, String) {
        let name = format!("machine-{number}");
        let provider_id = format!("generic:///{name}");
        (name, provider_id, format!("t{number:05}"))
    }

    fn create_machines(&self, machines: Range<usize>) {
        let server = self.workload().server().trim_start_matches("https://");
        let objects = machines.map(|number| {
            let (name, provider_id, token) = Self::machine(number);
            let machine = NewMachine {
                cluster: CLUSTER,
                name: &name,
                provider_id: &provider_id,
                token: &token,
                server,
            };
            machine.objects(NAMESPACE)
        });
        let objects: Vec<_> = objects.collect();
        let kubeconfig = self.management.admin_kubeconfig();
        self.runtime.block_on(load::create(kubeconfig, &objects));
    }

    /// Requests from these machines, each of which has a separate token.
    fn requests(&self, machines: Range<usize>) -> Vec<Request> {
        let ca = self.workload().ca().certificate_pem();
        let requests = machines.map(|number| {
            let (name, provider_id, token) = Self::machine(number);
            let application = Application::stamped(&name, &provider_id, ca);
            Request::new(&token, application.to_json())
        });
        requests.collect()
    }

    fn measure(&self, name: &str, process: &Process, requests: &[Request]) -> Row {
        measure(
            &self.runtime,
            self.workload(),
            (name, process.pid()),
            requests,
        )
    }

    /// Measures a client that makes the controller's writes without making decisions.
    fn ideal(&self, calls: &[(String, f64)]) -> Row {
        let kubectl = self.management.kubectl();
        let is_ours = |event: &&Value| event["reportingController"] == USER;
        let events = kubectl.json(["get", "events.events.k8s.io", "-A"]);
        let events = events["items"].as_array().unwrap();
        let of_one = |what: &str| {
            let all = calls.iter().filter(|(name, _)| name.contains(what));
            let written = all.map(|(_, count)| count).sum::<f64>();
            (written / MACHINES as f64).min(1.0)
        };
        let copies = ideal_client::Copies {
            record: kubectl.json(["get", "nodeidentities", "-A"])["items"][0].take(),
            event: events.iter().find(is_ours).unwrap().clone(),
            events: of_one("POST events/"),
            machine: self.machine_with_condition(),
            conditions: of_one(" machines/status "),
            certificate: self.certificate(),
        };
        let (management, workload) = (
            self.management_kubeconfig(None),
            self.workload().admin_kubeconfig().to_owned(),
        );
        let client = self
            .runtime
            .spawn(async move { ideal_client::run(&management, &workload, copies).await });
        let requests = self.requests(MACHINES..2 * MACHINES);
        // Earlier benchmarks ran in the same process.
        reset_peak_memory();
        let name = (
            "the same writes, by a client that decides nothing",
            std::process::id(),
        );
        let row = measure(&self.runtime, self.workload(), name, &requests);
        client.abort();
        row
    }

    /// One of the Machines with the controller's condition, without all other fields.
    fn machine_with_condition(&self) -> Value {
        let kubectl = self.management.kubectl();
        let machines = kubectl.json(["get", "machines.v1beta2.cluster.x-k8s.io", "-A"]);
        let machines = machines["items"].as_array().unwrap();
        let told = machines.iter().find_map(|machine| {
            let mut conditions = machine["status"]["conditions"].as_array()?.iter();
            let condition = conditions.find(|one| one["type"] == NODE_ATTESTED)?;
            Some(json!({
                "apiVersion": machine["apiVersion"], "kind": machine["kind"],
                "metadata": {"namespace": machine["metadata"]["namespace"]},
                "status": {"conditions": [condition]},
            }))
        });
        told.expect("the controller has written a condition")
    }

    /// One of the issued certificates.
    fn certificate(&self) -> String {
        let csrs = self.workload().csrs();
        let certificates = csrs.iter().map(|csr| &csr["status"]["certificate"]);
        let mut certificates = certificates.filter_map(Value::as_str);
        certificates.next().unwrap().to_owned()
    }

    /// A kubeconfig for the controller, optionally through this proxy.
    fn management_kubeconfig(&self, proxy: Option<&BreakingProxy>) -> PathBuf {
        let plane = self.management.control_plane();
        let path = plane.client_cert_kubeconfig(USER, None);
        if let Some(proxy) = proxy {
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, text.replace(plane.server(), &proxy.url())).unwrap();
        }
        path
    }

    /// The number of requests that are lost or answered twice while the connections to both API servers repeatedly
    /// break, and the leader stops.
    fn disturbed(&self) -> usize {
        self.create_machines(2 * MACHINES..3 * MACHINES);
        let [management, workload] = [self.management.control_plane(), self.workload()]
            .map(|plane| BreakingProxy::start(&self.runtime, plane.server()));
        let kubeconfig = workload_kubeconfig(CLUSTER, self.workload());
        let kubeconfig = kubeconfig.replace(self.workload().server(), &workload.url());
        self.cluster.write_kubeconfig(&kubeconfig);
        let kubeconfig = self.management_kubeconfig(Some(&management));
        let mut leader = Controller::start(&kubeconfig);
        let leads = |process: &Process| process.log().text().contains("\"leading\"");
        poll(DEADLINE, || leads(&leader.process).then_some(())).expect("one leads");
        let _standby = Controller::start(&kubeconfig);

        let requests = self.requests(2 * MACHINES..3 * MACHINES);
        let pause = BETWEEN * BREAKS / u32::try_from(MACHINES).unwrap();
        let admin = self.workload().admin_kubeconfig();
        let load = load::run(admin, &requests, pause);
        let breaks = async {
            for number in 0..BREAKS {
                tokio::time::sleep(BETWEEN).await;
                management.break_all();
                workload.break_all();
                if number == BREAKS / 2 {
                    leader.process.kill();
                }
            }
        };
        let (certificates, ()) = self.runtime.block_on(futures::future::join(load, breaks));
        certificates.wrong(&requests)
    }

    /// The calls that both API servers have served, except watches.
    fn calls(&self) -> Vec<(String, f64)> {
        let mut calls = Vec::new();
        for (place, plane) in [
            ("management", self.management.control_plane()),
            ("workload", self.workload()),
        ] {
            let metrics = plane.kubectl().raw("/metrics").unwrap();
            calls.extend(load::calls(place, &metrics));
        }
        calls
    }
}

/// Measures kube-controller-manager with `count` requests for its own signer.
fn stock(runtime: &Runtime, name: &str, count: usize, arguments: &[&str]) -> Row {
    let builder = ControlPlane::builder().controllers(Controllers::Certificates);
    let arguments = arguments.iter().copied();
    let plane = arguments.fold(builder, |builder, argument| {
        builder.controller_manager_arg(argument)
    });
    let plane = plane.start();
    plane.install_kubeadm_bindings();
    let requests = (0..count).map(|number| {
        let node = format!("machine-{number}");
        let (request, _) = certificate_request(&Subject::node(&node), None);
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": node},
            "spec": {
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
                "request": BASE64_STANDARD.encode(request),
            },
        });
        Request::new(&format!("t{number:05}"), object)
    });
    let requests: Vec<Request> = requests.collect();
    let pid = plane.controller_manager().unwrap().pid();
    measure(runtime, &plane, (name, pid), &requests)
}

/// Creates the requests, and waits for their certificates.
fn measure(
    runtime: &Runtime,
    plane: &ControlPlane,
    (name, pid): (&str, u32),
    requests: &[Request],
) -> Row {
    let before = processor_time(pid);
    let certificates = runtime.block_on(load::run(
        plane.admin_kubeconfig(),
        requests,
        Duration::ZERO,
    ));
    std::thread::sleep(AFTERWARDS);
    let processor = processor_time(pid) - before;
    assert_eq!(certificates.wrong(requests), 0, "{name} loses no request");
    let times = certificates.times();
    let count = u32::try_from(requests.len()).unwrap();
    Row {
        name: name.to_owned(),
        rate: certificates.rate(),
        p50: percentile(&times, 50),
        p99: percentile(&times, 99),
        processor: processor / count,
        peak: peak_memory(pid),
    }
}

/// For each kind of call, the increase of its number from `before` to `after`.
fn difference(after: &[(String, f64)], before: &[(String, f64)]) -> Vec<(String, f64)> {
    let grown = after.iter().map(|(what, count)| {
        let former = before.iter().find(|(other, _)| other == what);
        (
            what.clone(),
            count - former.map_or(0.0, |(_, former)| *former),
        )
    });
    grown.filter(|(_, count)| *count > 0.0).collect()
}

/// The controller that accepts rubber stamps as evidence.
struct Controller {
    process: Process,
    _files: Scratch,
}

impl Controller {
    fn start(kubeconfig: &Path) -> Self {
        let files = Scratch::new("throughput");
        let launch = Launch::new("controller", program("null-attestation-controller"))
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--insecure-allow-loopback", "--log-format", "json"]);
        Self {
            process: launch.spawn(&files.join("controller.log")),
            _files: files,
        }
    }
}
