//! The memory and the connections that the controller uses for each cluster and for each node. Everything except the
//! controller runs in this process.

use std::time::Duration;

use kubelet_authenticator_test_support::process::Process;

use crate::measure::{peak_memory, resident_memory};
use crate::report::{Suite, print_table};
use crate::simulation::{Simulation, Tenant};

/// The numbers of clusters without Machines, and the numbers of Machines in all clusters.
const CLUSTERS: [usize; 3] = [100, 300, 1000];
const MACHINES: [usize; 2] = [30_000, 100_000];

/// The limits on a controller's memory, in bytes: the base, and the additional memory for each cluster and for each
/// node.
const OWN: usize = 60_000_000;
const A_CLUSTER: usize = 150_000;
const A_NODE: usize = 3_000;

const MIB: f64 = 1024.0 * 1024.0;

/// The time after which the controller has completed its work at startup.
const SETTLED: Duration = Duration::from_secs(20);

/// Measures the values, prints the table, and returns the values.
pub fn run() -> Suite {
    let simulation = Simulation::new();
    let mut measured = vec![measure(&simulation, &[], 0)];
    let mut tenants: Vec<Tenant> = Vec::new();
    for clusters in CLUSTERS {
        let new = (tenants.len()..clusters).map(Tenant::new);
        let new: Vec<Tenant> = new
            .inspect(|one| simulation.put_cluster(one, "insecure"))
            .collect();
        tenants.extend(new);
        measured.push(measure(&simulation, &tenants, 0));
    }
    let mut machines = 0;
    for count in MACHINES {
        for number in machines..count {
            let (cluster, name) = (&tenants[number % tenants.len()], format!("node-{number}"));
            simulation.put_machine(cluster, &name, &format!("{number:06}"));
            simulation.put_record(cluster, &name);
        }
        machines = count;
        measured.push(measure(&simulation, &tenants, machines));
    }

    let mut suite = Suite::new("memory");
    let mut rows = Vec::new();
    for one in &measured {
        let (clusters, nodes) = (one.clusters, one.nodes);
        let most = OWN + A_CLUSTER * clusters + A_NODE * nodes;
        let most = most as f64 / MIB;
        let name = format!("{clusters} clusters, {nodes} nodes");
        rows.push(vec![
            name.clone(),
            format!("{:.1}", one.resident),
            format!("{:.1}", one.peak),
            format!("{most:.1}"),
            format!("{:.2}", one.connections),
            format!("{:.0}", one.to_management),
        ]);
        suite.add(&name, one.resident, "MiB", Some(most));
        suite.add(
            format!("{name}: connections of a cluster"),
            one.connections,
            "",
            Some(2.0),
        );
    }
    println!();
    print_table(
        &[
            "memory of one controller",
            "resident, MiB",
            "at most, MiB",
            "limit, MiB",
            "connections of a cluster",
            "to the management cluster",
        ],
        &rows,
    );
    suite
}

/// The resources that a controller uses in a steady state.
struct Measured {
    clusters: usize,
    nodes: usize,
    /// Resident memory in MiB.
    resident: f64,
    /// Peak memory in MiB.
    peak: f64,
    /// The number of connections to each cluster.
    connections: f64,
    to_management: f64,
}

/// Starts a controller, which serves all existing clusters.
fn measure(simulation: &Simulation, tenants: &[Tenant], nodes: usize) -> Measured {
    let before: Vec<usize> = tenants
        .iter()
        .map(|tenant| tenant.server.watches())
        .collect();
    let name = "node-attestation-controller";
    let controller: Process = simulation.start(name, &["--allow-insecure"], &[]);
    simulation.wait_until_watched(tenants, &before);
    std::thread::sleep(SETTLED);
    let open = tenants
        .iter()
        .map(|tenant| tenant.server.open_connections());
    let open: usize = open.sum();
    let measured = Measured {
        clusters: tenants.len(),
        nodes,
        resident: resident_memory(controller.pid()),
        peak: peak_memory(controller.pid()),
        connections: open as f64 / tenants.len().max(1) as f64,
        to_management: simulation.management.open_connections() as f64,
    };
    println!(
        "{} clusters, {nodes} nodes: {:.1} MiB, at most {:.1}; connections {:.2} and {}",
        tenants.len(),
        measured.resident,
        measured.peak,
        measured.connections,
        measured.to_management,
    );
    measured
}
