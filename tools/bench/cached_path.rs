//! Measures the plugin with a valid credential in its store: the run that every kubelet starts once an hour.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer, TOKEN};
use kubelet_authenticator_test_support::settings::option;

use crate::controller;
use crate::measure::{Cost, Program, interleaved, percentile};
use crate::report::{Suite, print_table};

/// The number of runs for the wall time of each program.
const RUNS: usize = 300;

/// The maximum size of the program in bytes. The controller's reasons, the page URLs and the texts of the manual pages
/// account for 74 KB. `tpm` is the largest one.
const MAX_SIZE: f64 = 7.4e6;
const MAX_INSTRUCTIONS: f64 = 152_000.0;
const MAX_SYSTEM_CALLS: f64 = 45.0;
const MAX_OPENS: f64 = 6.0;
/// The maximum peak memory in KiB. The kernel maps up to 64 KiB around each page that a program reads, depending on the
/// state of its page cache. Therefore, the peak memory of the same program is between 1,968 and 2,088 KiB.
const MAX_PEAK_KIB: f64 = 2.25 * 1024.0;

/// Typical settings for this provider.
const SETTINGS: &str = "\
apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1
kind: KubeletAuthenticatorConfiguration
nodeName: bench
providerID: bench:///bench
";

const PLUGIN: &str = "kubelet-authenticator-insecure";

/// The released plugins. The limits apply to each plugin.
pub const PLUGINS: [&str; 3] = [
    PLUGIN,
    "kubelet-authenticator-aws",
    "kubelet-authenticator-tpm",
];

/// A node whose plugin runs as if client-go had started it.
pub struct Node {
    exec_info: String,
    settings: Vec<OsString>,
}

impl Node {
    /// Creates a machine with an empty store.
    pub fn new(server: &ApiServer, folder: &Path, name: &str, token: &str) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let bootstrap = server.write_bootstrap_kubeconfig(folder, token);
        let settings = vec![
            option("stateDirectory", folder.join("state")),
            option("bootstrapKubeconfig", bootstrap),
            option("nodeName", name),
            option("providerID", controller::provider_id(name)),
        ];
        Self {
            exec_info: server.exec_info("v1", true),
            settings,
        }
    }

    /// A run of this program with the node's settings.
    pub fn program(&self, name: &'static str, programs: &Path) -> Program {
        Program::new(name, programs.join(name))
            .with_args(&self.settings)
            .with_env([("KUBERNETES_EXEC_INFO", &*self.exec_info)])
    }
}

/// Measures the values, prints the table, and returns the values.
pub fn run(programs: &Path, limits_only: bool) -> Suite {
    let folder = tempfile::tempdir().unwrap();
    let programs = &in_memory(programs, folder.path());
    let server = ApiServer::start();
    server.set_signer(Signer::issue_for(Duration::from_secs(365 * 24 * 3600)));
    let node = Node::new(&server, folder.path(), "bench", TOKEN);
    let plugin = node.program(PLUGIN, programs);
    for name in PLUGINS {
        assert!(
            is_static(&programs.join(name)),
            "{name} is not statically linked"
        );
    }
    plugin.time();
    let requests = server.requests().len();
    let settings = folder.path().join("config.yaml");
    std::fs::write(&settings, SETTINGS).unwrap();
    let with_settings = Program {
        name: "insecure, with a settings file",
        ..plugin.clone()
    };
    let with_settings = with_settings.with_args([option("config", &settings)]);

    // These plugins run with the same store, and without a source of evidence: without a metadata service or a TPM.
    let others = PLUGINS.into_iter().filter(|name| *name != PLUGIN);
    let others: Vec<Program> = others
        .map(|name| Program {
            name,
            path: programs.join(name),
            ..plugin.clone()
        })
        .collect();
    let credential = folder.path().join("state/kubelet-client.pem");
    let mut all = vec![
        Program::new("does nothing", programs.join("floor")),
        Program::new("reads and prints the file", programs.join("floor-read"))
            .with_args([&credential]),
        Program::new("cat", "/bin/cat").with_args([&credential]),
        plugin,
        with_settings,
    ];
    all.extend(others);
    let peak_memory = programs.join("peak-memory");
    let costs: Vec<Cost> = all
        .iter()
        .map(|program| program.cost(&peak_memory))
        .collect();
    let times = if limits_only {
        vec![]
    } else {
        interleaved(&all, RUNS)
    };
    assert_eq!(
        server.requests().len(),
        requests,
        "the cached path used the network"
    );

    std::fs::remove_dir_all(programs).unwrap();
    print(&all, &costs, &times);
    values(&all, &costs, &times)
}

fn values(programs: &[Program], costs: &[Cost], times: &[Vec<Duration>]) -> Suite {
    let mut suite = Suite::new("cached-path");
    for (index, (program, cost)) in programs.iter().zip(costs).enumerate() {
        let limit = |limit: f64| PLUGINS.contains(&program.name).then_some(limit);
        let mut add = |what: &str, value: f64, unit, limit| {
            suite.add(format!("{}: {what}", program.name), value, unit, limit)
        };
        add("size", cost.size as f64, "B", limit(MAX_SIZE));
        add(
            "instructions",
            cost.instructions as f64,
            "instructions",
            limit(MAX_INSTRUCTIONS),
        );
        add(
            "system calls",
            cost.system_calls as f64,
            "calls",
            limit(MAX_SYSTEM_CALLS),
        );
        add("files opened", cost.opens as f64, "files", limit(MAX_OPENS));
        add(
            "peak memory",
            cost.peak_kib as f64,
            "KiB",
            limit(MAX_PEAK_KIB),
        );
        if let Some(times) = times.get(index) {
            add("wall p50", micros(percentile(times, 50)), "us", None);
            add("wall p95", micros(percentile(times, 95)), "us", None);
        }
    }
    suite
}

fn print(programs: &[Program], costs: &[Cost], times: &[Vec<Duration>]) {
    let rows: Vec<Vec<String>> = programs
        .iter()
        .zip(costs)
        .enumerate()
        .map(|(index, (program, cost))| {
            let wall = |percent| {
                times.get(index).map_or("-".to_owned(), |times| {
                    format!("{:.0}", micros(percentile(times, percent)))
                })
            };
            vec![
                program.name.to_owned(),
                cost.size.to_string(),
                cost.instructions.to_string(),
                cost.system_calls.to_string(),
                cost.opens.to_string(),
                cost.peak_kib.to_string(),
                wall(50),
                wall(95),
            ]
        })
        .collect();
    let header = [
        "cached path",
        "size, B",
        "instructions",
        "system calls",
        "opens",
        "peak, KiB",
        "p50, us",
        "p95, us",
    ];
    print_table(&header, &rows);
}

/// Copies the programs to an in-memory file system, if there is one.
///
/// A page fault maps a part of the program. The size of this part depends on how the file was read into the page cache.
/// For the same binary on a disk, the measured memory is 1.8 to 4.3 MiB.
fn in_memory(programs: &Path, fallback: &Path) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory } else { fallback };
    let folder = base.join(format!(
        "kubelet-authenticator-bench-{}",
        std::process::id()
    ));
    std::fs::create_dir(&folder).unwrap();
    for name in ["floor", "floor-read", "peak-memory"]
        .iter()
        .chain(&PLUGINS)
    {
        std::fs::copy(programs.join(name), folder.join(name)).unwrap();
    }
    folder
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Whether the program runs without a dynamic loader.
fn is_static(program: &Path) -> bool {
    let output = Command::new("ldd")
        .arg(program)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    text.contains("statically linked") || text.contains("not a dynamic executable")
}
