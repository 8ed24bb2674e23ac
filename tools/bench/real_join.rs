//! Measures joins with a real API server: alternately a kubelet with TLS bootstrapping, and a kubelet with the plugin.

use std::path::Path;
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, DEADLINE, Exec, User, Watch,
};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_tests::controller::define_identities;
use serde_json::Value;

use crate::controller;
use crate::measure::percentile;
use crate::report::{Suite, print_table};

/// The number of joins of each kind.
const JOINS: usize = 10;

const SECRET: &str = "0123456789abcdef";
const PLUGIN: &str = "kubelet-authenticator-insecure";

/// The times at which events were observed, relative to the kubelet's start.
struct Join {
    created_to_issued: Duration,
    registered: Duration,
}

/// Measures the values, prints the table, and returns the values.
pub fn run(programs: &Path, program: &Path) -> Suite {
    let plane = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    plane.install_kubeadm_bindings();
    define_identities(plane.kubectl());
    let folder = tempfile::tempdir().unwrap();
    let machines: Vec<(String, String)> = (0..JOINS)
        .map(|index| (format!("plugin-{index}"), format!("plug{index:02}")))
        .collect();
    let files = controller::Files {
        kubeconfig: plane.admin_kubeconfig().to_owned(),
        ca_cert: plane.ca_cert_path(),
        ca_key: plane.ca_key_path(),
    };
    let _controller = controller::start(program, &files, &machines, folder.path());

    let mut stock = Vec::new();
    let mut plugin = Vec::new();
    for (index, (name, token)) in machines.iter().enumerate() {
        stock.push(stock_join(&plane, index));
        plugin.push(plugin_join(&plane, &programs.join(PLUGIN), name, token));
    }

    let mut suite = Suite::new("real-join");
    let mut rows = Vec::new();
    let kinds = [("the kubelet's own TLS bootstrap", stock), (PLUGIN, plugin)];
    for (what, joins) in kinds {
        let mut issued: Vec<Duration> = joins.iter().map(|join| join.created_to_issued).collect();
        let mut registered: Vec<Duration> = joins.iter().map(|join| join.registered).collect();
        let (issued, registered) = (spread(&mut issued), spread(&mut registered));
        rows.push(vec![what.to_owned(), text(issued), text(registered)]);
        suite.add(
            format!("{what}: created to issued, median"),
            issued[1],
            "ms",
            None,
        );
        suite.add(
            format!("{what}: start to registered, median"),
            registered[1],
            "ms",
            None,
        );
    }
    println!();
    let header = [
        "a join on real Kubernetes, ms, min / median / max",
        "request created to issued",
        "kubelet's start to Node registered",
    ];
    print_table(&header, &rows);
    suite
}

fn stock_join(plane: &ControlPlane, index: usize) -> Join {
    let token = plane.add_bootstrap_token(&format!("stoc{index:02}"), SECRET);
    let bootstrap = plane.bootstrap_kubeconfig(&token);
    let name = format!("stock-{index}");
    let kubelet = plane.kubelet(&name).bootstrap_kubeconfig(bootstrap);
    observed(plane, &name, token.id(), || kubelet.start())
}

fn plugin_join(plane: &ControlPlane, plugin: &Path, name: &str, token: &str) -> Join {
    let token = plane.add_bootstrap_token(token, SECRET);
    let bootstrap = plane.kubeconfig(User::Token(token.bearer()));
    let exec = Exec::new(plugin)
        .provide_cluster_info()
        .setting("bootstrapKubeconfig", bootstrap.display().to_string())
        .setting("providerID", controller::provider_id(name));
    let kubelet = plane.kubelet(name).kubeconfig(plane.exec_kubeconfig(exec));
    observed(plane, name, token.id(), || kubelet.start())
}

/// Watches a join. The same watches observe both kinds of joins, so both kinds include the cost of the watches.
fn observed(
    plane: &ControlPlane,
    name: &str,
    token: &str,
    start: impl FnOnce() -> Kubelet,
) -> Join {
    let mut requests = plane.kubectl().watch(&["csr"]);
    let mut nodes = plane.kubectl().watch(&["nodes"]);
    let user = format!("system:bootstrap:{token}");
    let begin = Instant::now();
    let _kubelet = start();
    let mine = |csr: &Value| csr["spec"]["username"] == user.as_str();
    let created = seen(&mut requests, begin, mine);
    let issued = seen(&mut requests, begin, |csr| {
        mine(csr) && csr["status"]["certificate"].is_string()
    });
    let registered = seen(&mut nodes, begin, |node| node["metadata"]["name"] == name);
    Join {
        created_to_issued: issued - created,
        registered,
    }
}

fn seen(watch: &mut Watch, begin: Instant, wanted: impl Fn(&Value) -> bool) -> Duration {
    loop {
        let event = watch
            .next(DEADLINE)
            .expect("the event occurs before the deadline");
        if wanted(&event.object) {
            return begin.elapsed();
        }
    }
}

/// The minimum, the median and the maximum, in milliseconds.
fn spread(times: &mut [Duration]) -> [f64; 3] {
    times.sort_unstable();
    [0, 50, 100].map(|percent| percentile(times, percent).as_secs_f64() * 1e3)
}

fn text(spread: [f64; 3]) -> String {
    let [least, median, most] = spread;
    format!("{least:.0} / {median:.0} / {most:.0}")
}
