//! The clusters of one controller. A quarter of the API servers become hostile, and the benchmark measures the effect
//! on the other clusters. Of three more tenants, one has many Machines, one has objects that are expensive to read, and
//! one has many Clusters in the management cluster. Everything except the controller runs in this process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::api_server::{ConnectionFault, Fault, Route, Times, Verb};
use kubelet_authenticator_tests::controller::{Application, is_answered, is_issued};
use kubelet_authenticator_tests::scrape::Diagnostics;

use tokio::net::TcpSocket;

use crate::measure::{peak_memory, percentile, processor_time, threads};
use crate::report::{Suite, print_table};
use crate::simulation::{Simulation, Tenant, provider_id};
use crate::{crowd, heavy, swarm};

/// The number of clusters that do not become hostile.
const GOOD: usize = 150;

/// The number of clusters that become hostile: ten clusters for each kind of hostile behavior.
const HOSTILE: usize = 50;

/// The number of concurrent joins, each in a separate cluster.
const AT_ONCE: usize = 20;

/// The number of rounds of joins before the other clusters become hostile, and the number of rounds after that.
const ROUNDS: usize = 15;

/// The pause between two rounds, so that the rounds cover more than one state of the hostile clusters.
const BETWEEN: Duration = Duration::from_secs(4);

/// The time limit for one join. The measurement ends if a join takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// The maximum factor by which the duration of joins can increase.
const MAX_MORE: f64 = 2.0;

/// The maximum duration of one join next to hostile clusters, in milliseconds.
const MAX_JOIN: f64 = 1000.0;

/// The maximum response time of `/healthz`, in milliseconds.
const MAX_PROBE: f64 = 100.0;

/// The maximum processor time for which a lock that tenants share is held, in milliseconds.
const MAX_HELD: f64 = 1.0;

/// Locks that this benchmark must measure. The program reports the names of all locks.
const MEASURED: [&str; 10] = [
    "Cluster API kinds",
    "Cluster API objects",
    "budgets of log lines",
    "caches of records",
    "connections to an API server",
    "lookups of kinds",
    "metrics of clusters",
    "objects of a Cluster",
    "slow lookups",
    "waiters for Clusters",
];

/// The limit for the controller's memory next to hostile clusters, in MiB.
const MAX_MEMORY: f64 = 400.0;

/// The number of hostile clusters whose requests the controller stores, and whose requests use much more memory than
/// their length.
const KEEPING: usize = 4;

/// The number of these requests in each cluster that a watch returns, and the number that a list returns. A list with
/// more of these requests would exceed the limit for a page.
const KEPT: usize = 1000;
const LISTED: usize = 4;

/// The number of values in each request. This number is near the limit.
const VALUES: usize = 4000;

/// The maximum number of threads in the controller: tokio's threads, and the threads of hanging lookups.
const MAX_THREADS: f64 = 64.0;

/// The number of elements in a response. Each element is 3 bytes long.
const ELEMENTS: usize = 640_000;

/// The address of a name server that never responds.
const NAME_SERVER: &str = "127.0.0.2";

/// A script that starts a program in a mount namespace in which the program uses this name server.
const WITH_NAME_SERVER: &str = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;

/// Measures the values, prints the table, and returns the values.
pub fn run() -> Suite {
    let simulation = Simulation::new();
    let tenants: Vec<Tenant> = (0..GOOD + HOSTILE).map(Tenant::new).collect();
    for tenant in &tenants {
        simulation.put_cluster(tenant, "aws");
    }
    let (good, hostile) = tenants.split_at(GOOD);
    let [crowded, expensive] = [GOOD + HOSTILE, GOOD + HOSTILE + 1].map(Tenant::new);
    simulation.put_cluster(&crowded, "aws");
    simulation.put_cluster(&expensive, "aws");
    for round in 0..=2 * ROUNDS {
        for (number, tenant) in of_round(good, round) {
            simulation.put_machine(tenant, &machine(number, round), &token(number, round));
        }
    }
    let lookups = name_server();
    let resolv_conf = simulation.folder().join("resolv.conf");
    std::fs::write(&resolv_conf, format!("nameserver {NAME_SERVER}\n")).unwrap();
    let resolv_conf = resolv_conf.to_str().unwrap();
    let wrapper = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        WITH_NAME_SERVER,
        resolv_conf,
    ];
    let diagnostics = Diagnostics::default();
    let lock_times = simulation.folder().join("lock-times.json");
    let [metrics, health] = diagnostics.arguments();
    let arguments = [
        metrics.as_str(),
        health.as_str(),
        "--lock-times",
        lock_times.to_str().unwrap(),
    ];
    let controller = simulation.start("null-attestation-controller", &arguments, &wrapper);
    simulation.wait_until_watched(&tenants, &vec![0; tenants.len()]);
    simulation.wait_until_watched(std::slice::from_ref(&crowded), &[0]);
    simulation.wait_until_watched(std::slice::from_ref(&expensive), &[0]);
    // The first requests are made before the measurement.
    joins(good, 0);

    let used = processor_time(controller.pid());
    let mut usual = rounds(good, 1..=ROUNDS);
    let used_before = processor_time(controller.pid()) - used;
    let peak_before = peak_memory(controller.pid());
    let asked_before: Vec<usize> = hostile.iter().map(asked).collect();
    let hole = Hole::new();
    for (tenant, number) in hostile.iter().zip(0..) {
        turn(&simulation, tenant, number, hole.address);
    }
    let probes = crowd::probe(diagnostics);
    let swarm = swarm::turn(&simulation);
    let crowd = crowd::turn(&simulation, crowded);
    let namespace = expensive.name.clone();
    let writes = heavy::turn(&simulation, &namespace);
    let expensive = crowd::request(expensive);
    let used = processor_time(controller.pid());
    let mut beside = rounds(good, ROUNDS + 1..=2 * ROUNDS);
    let used_beside = processor_time(controller.pid()) - used;
    let longest_probe = probes.end().as_secs_f64() * 1e3;
    let (filed, read_for, written, replaced) =
        (crowd.end(), expensive.end(), writes.end(), swarm.end());

    let spread = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        [50, 95, 100].map(|percent| percentile(times, percent).as_secs_f64() * 1e3)
    };
    let (usual, beside) = (spread(&mut usual), spread(&mut beside));
    let asked_since = hostile.iter().zip(asked_before);
    let calls: usize = asked_since.map(|(it, before)| asked(it) - before).sum();
    let reported = heavy::reported(&simulation.log(), &namespace);
    // The amounts of hostile work: for each kind, the measured amount and the minimum. With less work, the benchmark
    // would not test the limits.
    let work = [
        ("calls of hostile API servers", calls, 200),
        (
            "questions to the name server",
            lookups.load(Ordering::Relaxed),
            50,
        ),
        ("requests beside many objects", filed, 200),
        ("requests beside expensive objects", read_for, 200),
        ("writes of expensive objects", written, 100),
        (
            "kinds with an object that was reported as unreadable",
            reported.len(),
            heavy::WATCHED.len(),
        ),
        ("Clusters that were replaced", replaced, 200),
    ];
    let peak = peak_memory(controller.pid());
    let mut suite = Suite::new("neighbours");
    let mut rows = Vec::new();
    let more = Some(MAX_MORE);
    for (name, value, unit, limit) in [
        (
            "a join beside good neighbours, median",
            usual[0],
            "ms",
            None,
        ),
        ("a join beside good neighbours, p95", usual[1], "ms", None),
        ("a join beside good neighbours, most", usual[2], "ms", None),
        ("a join beside hostile ones, median", beside[0], "ms", None),
        ("a join beside hostile ones, p95", beside[1], "ms", None),
        (
            "a join beside hostile ones, most",
            beside[2],
            "ms",
            Some(MAX_JOIN),
        ),
        (
            "an answer to /healthz, most",
            longest_probe,
            "ms",
            Some(MAX_PROBE),
        ),
        (
            "median beside hostile ones, of the usual",
            beside[0] / usual[0],
            "",
            more,
        ),
        (
            "most beside hostile ones, of the usual",
            beside[2] / usual[2],
            "",
            None,
        ),
        (
            "peak memory beside good neighbours",
            peak_before,
            "MiB",
            None,
        ),
        (
            "peak memory beside hostile ones",
            peak,
            "MiB",
            Some(MAX_MEMORY),
        ),
        (
            "processor time beside good neighbours",
            used_before.as_secs_f64(),
            "s",
            None,
        ),
        (
            "processor time beside hostile ones",
            used_beside.as_secs_f64(),
            "s",
            None,
        ),
        ("threads", threads(controller.pid()), "", Some(MAX_THREADS)),
    ] {
        rows.push(vec![name.to_owned(), format!("{value:.1} {unit}")]);
        suite.add(name, value, unit, limit);
    }
    for (name, count, least) in work {
        rows.push(vec![name.to_owned(), format!("{count}, at least {least}")]);
        suite.add(name, count as f64, "", None);
    }
    let mut locks = crowd::lock_times(&lock_times);
    locks.retain(|_, held| *held > 0.0);
    for (lock, held) in &locks {
        let name = format!("processor time under the lock of {lock}, most");
        rows.push(vec![name.clone(), format!("{held:.3} ms")]);
        suite.add(name, *held, "ms", Some(MAX_HELD));
    }
    println!();
    let title = "one controller, 50 of 200 clusters hostile, and three hostile tenants";
    print_table(&[title, "value"], &rows);
    for (name, count, least) in work {
        assert!(count >= least, "{name}: {count}, fewer than {least}");
    }
    for lock in MEASURED {
        assert!(
            locks.contains_key(lock),
            "the lock of {lock} is not measured"
        );
    }
    suite
}

/// A name server that never responds, and the number of queries that it has received.
fn name_server() -> Arc<AtomicUsize> {
    let socket = UdpSocket::bind((NAME_SERVER, 53)).expect("the permission to bind port 53");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while socket.recv(&mut question).is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    asked
}

/// An address that does not accept connections, and does not send errors.
struct Hole {
    address: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Hole {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        let listener = runtime.unwrap().block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            socket.listen(0).unwrap().into_std().unwrap()
        });
        let address = listener.local_addr().unwrap();
        // Fill the accept queue. The kernel then does not answer further connection attempts.
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let waiting = std::iter::from_fn(connect).collect();
        Self {
            address,
            _listener: listener,
            _waiting: waiting,
        }
    }
}

/// Makes an API server hostile from now on. The number selects the kind of hostile behavior.
fn turn(simulation: &Simulation, tenant: &Tenant, number: usize, hole: SocketAddr) {
    let Tenant { name, server } = tenant;
    let connections = |fault| server.inject_connection(Times::always(), fault);
    let calls = |route, fault| server.inject(route, Times::always(), fault);
    let variant = number / 5;
    match number % 5 {
        // Black holes: the client does not get any response.
        0 if variant.is_multiple_of(2) => connections(ConnectionFault::SilentAtTcp),
        0 => {
            let there = format!("https://{hole}");
            simulation.put_kubeconfig(name, &tenant.kubeconfig().server(&there));
        }
        1 => connections(ConnectionFault::Slow),
        // Floods: the client gets more data than it can use.
        2 if variant.is_multiple_of(2) => calls(Route::watch(), Fault::WatchFlood),
        2 => {
            let (verb, body) = much_of_little(variant / 2);
            let fault = Fault::Answer {
                code: 200,
                content_type: "application/json".to_owned(),
                body: body.into_bytes(),
            };
            calls(Route::verb(verb), fault);
        }
        // Garbage: the client gets data that is not TLS, HTTP or JSON.
        3 => match variant % 3 {
            0 => connections(ConnectionFault::NotTls),
            1 => connections(ConnectionFault::NotHttp),
            _ => calls(Route::any(), Fault::not_json()),
        },
        // The API server sends requests that the controller lists, watches and stores, and never responds to the
        // controller's answers.
        4 if variant < KEEPING => {
            for (route, body) in [
                (Route::list(), kept_list()),
                (Route::watch(), kept_events()),
            ] {
                let fault = Fault::Answer {
                    code: 200,
                    content_type: "application/json".to_owned(),
                    body: body.into_bytes(),
                };
                calls(route, fault);
            }
            calls(Route::approval(), Fault::Hang);
        }
        _ => {
            let nowhere = format!("https://{name}.example.com:{}", server.address().port());
            simulation.put_kubeconfig(name, &tenant.kubeconfig().server(&nowhere));
        }
    }
    server.drop_connections();
}

/// A list with these objects.
fn list(items: &str) -> String {
    format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#)
}

/// A response body that uses much more memory than its length, and the verb of the calls that receive it.
fn much_of_little(number: usize) -> (Verb, String) {
    let elements = "{},".repeat(ELEMENTS) + "{}";
    let metadata = format!(r#"{{"name":"x","managedFields":[{elements}]}}"#);
    match number % 4 {
        0 => (Verb::List, list(&elements)),
        1 => (Verb::List, list(&format!(r#"{{"metadata":{metadata}}}"#))),
        2 => {
            let subjects = format!(r#"{{"metadata":{{"name":"x"}},"subjects":[{elements}]}}"#);
            (Verb::List, list(&subjects))
        }
        _ => {
            let object = format!(r#"{{"metadata":{metadata},"spec":{{"groups":[{elements}]}}}}"#);
            let event = format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
            (Verb::Watch, event)
        }
    }
}

/// A certificate request for the controller. Its usages or its groups consist of many small values. It has no metadata
/// that the controller does not use, so the controller stores it as a whole.
fn kept_request(number: usize) -> String {
    let values = r#""","#.repeat(VALUES) + r#""""#;
    let (usages, groups) = match number % 3 {
        0 => (values.as_str(), ""),
        1 => ("", values.as_str()),
        // The memory use of this request corresponds to its length.
        _ => ("", ""),
    };
    let metadata = format!(r#"{{"name":"k{number}","uid":"k{number}","resourceVersion":"9"}}"#);
    let signer = Provider::NULL.client_signer();
    let lists = format!(r#""usages":[{usages}],"groups":[{groups}]"#);
    let spec = format!(r#"{{"request":"","signerName":"{signer}",{lists}}}"#);
    format!(r#"{{"metadata":{metadata},"spec":{spec}}}"#)
}

fn kept_list() -> String {
    let requests: Vec<String> = (KEPT..KEPT + LISTED).map(kept_request).collect();
    list(&requests.join(","))
}

fn kept_events() -> String {
    let event = |number| {
        let request = kept_request(number);
        format!("{{\"type\":\"ADDED\",\"object\":{request}}}\n")
    };
    (0..KEPT).map(event).collect()
}

/// The number of requests and connections to an API server.
fn asked(tenant: &Tenant) -> usize {
    tenant.server.requests().len() + tenant.server.connections()
}

fn rounds(tenants: &[Tenant], rounds: impl Iterator<Item = usize>) -> Vec<Duration> {
    let round = |round| {
        std::thread::sleep(BETWEEN);
        joins(tenants, round)
    };
    rounds.flat_map(round).collect()
}

/// The clusters in a round, each with its number.
fn of_round(tenants: &[Tenant], round: usize) -> impl Iterator<Item = (usize, &Tenant)> {
    let all = tenants.iter().enumerate().cycle();
    all.skip(round * AT_ONCE % tenants.len()).take(AT_ONCE)
}

fn machine(number: usize, round: usize) -> String {
    format!("node-{number}-{round}")
}

fn token(number: usize, round: usize) -> String {
    format!("{number:03}{round:03}")
}

/// Makes one machine join each cluster of this round, all at the same time. Returns the duration of each join.
fn joins(tenants: &[Tenant], round: usize) -> Vec<Duration> {
    let applications = of_round(tenants, round).map(|(number, tenant)| {
        let name = machine(number, round);
        let application = Application::stamped(&name, &provider_id(&name), tenant.server.ca_pem());
        (tenant, application.with_token(&token(number, round)))
    });
    let applications: Vec<(&Tenant, Application)> = applications.collect();
    let filed = Instant::now();
    let mut open: Vec<(&Tenant, String)> = applications
        .iter()
        .map(|(tenant, application)| (*tenant, application.put(&tenant.server)))
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
        // The benchmark sleeps, because it measures real time and must not occupy a processor.
        std::thread::sleep(Duration::from_millis(1));
    }
    times
}
