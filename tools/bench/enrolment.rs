//! Measures one enrollment: the plugin with an empty store, an API server in memory, and the real controller.

use std::path::Path;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Verb};
use kubelet_authenticator_tests::controller::serve_identities;

use crate::cached_path::Node;
use crate::controller::{self, Controller, Files};
use crate::measure::percentile;
use crate::report::{Suite, print_table};

const NODES: usize = 60;
const PLUGIN: &str = "kubelet-authenticator-insecure";
const SECRET: &str = "0123456789abcdef";
const START: Duration = Duration::from_secs(20);

/// Measures the values, prints the table, and returns the values.
pub fn run(programs: &Path, program: &Path) -> Suite {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start();
    serve_identities(&server);
    let _controller = start(program, &server, folder.path());
    server.wait_for_request(Verb::Watch, 1, START);

    let peak_memory = programs.join("peak-memory");
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    let requests_before = server.creates() + server.watches() + server.gets();
    for index in 0..NODES {
        let name = format!("n{index}");
        let node = |run: &str| {
            let node = Node::new(
                &server,
                &folder.path().join(run).join(&name),
                &name,
                &format!("{}.{SECRET}", token_id(index)),
            );
            node.program(PLUGIN, programs)
        };
        // The runs alternately measure the wall time and the CPU time. The CPU time needs a separate parent process and
        // a different machine.
        if index % 2 == 0 {
            wall.push(node("wall").time());
        } else {
            cpu.push(node("cpu").peak_memory(&peak_memory).1);
        }
    }
    let requests = server.creates() + server.watches() + server.gets() - requests_before;
    wall.sort_unstable();
    cpu.sort_unstable();

    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let values = [
        ("wall p50", millis(percentile(&wall, 50)), "ms", None),
        ("wall p95", millis(percentile(&wall, 95)), "ms", None),
        ("CPU p50", millis(percentile(&cpu, 50)), "ms", None),
        (
            "requests",
            requests as f64 / NODES as f64,
            "requests",
            Some(2.0),
        ),
    ];
    let rows: Vec<Vec<String>> = values
        .iter()
        .map(|(name, value, unit, _)| {
            vec![
                (*name).to_owned(),
                format!("{value:.2}"),
                (*unit).to_owned(),
            ]
        })
        .collect();
    println!();
    print_table(&["one enrolment", "value", "unit"], &rows);
    let mut suite = Suite::new("enrolment");
    for (name, value, unit, limit) in values {
        suite.add(name, value, unit, limit);
    }
    suite
}

/// The public half of the bootstrap token of one machine.
fn token_id(index: usize) -> String {
    format!("t{index:05}")
}

fn start(program: &Path, server: &ApiServer, folder: &Path) -> Controller {
    let machines: Vec<(String, String)> = (0..NODES)
        .map(|index| (format!("n{index}"), token_id(index)))
        .collect();
    for (_, token) in &machines {
        server.add_token(token, SECRET);
    }
    let (ca_cert, ca_key) = server.write_ca(folder);
    let files = Files {
        kubeconfig: server.write_admin_kubeconfig(folder),
        ca_cert,
        ca_key,
    };
    controller::start(program, &files, &machines, folder)
}
