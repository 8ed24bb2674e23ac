//! What the controller has in memory for each cluster and for each node, with its connections. Everything but the
//! controller runs in this process.

use std::time::Duration;

use kubelet_authenticator_test_support::process::Process;

use crate::measure::{peak_memory, resident_memory};
use crate::report::{Suite, print_table};
use crate::simulation::{Simulation, Tenant};

/// Clusters, first with no Machine, then with so many.
const CLUSTERS: [usize; 2] = [100, 300];
const MACHINES: [usize; 2] = [10_000, 30_000];

/// For what was begun with the start to end.
const SETTLED: Duration = Duration::from_secs(20);

/// Measures, prints the table, and returns the values.
pub fn run() -> Suite {
    let simulation = Simulation::new();
    let mut suite = Suite::new("memory");
    let mut rows = Vec::new();
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut measured = vec![measure(&simulation, &tenants)];
    for clusters in CLUSTERS {
        let new = (tenants.len()..clusters).map(Tenant::new);
        let new: Vec<Tenant> = new
            .inspect(|one| simulation.put_cluster(one, "insecure"))
            .collect();
        tenants.extend(new);
        measured.push(measure(&simulation, &tenants));
    }
    let mut machines = 0;
    for count in MACHINES {
        for number in machines..count {
            let (cluster, name) = (&tenants[number % tenants.len()], format!("node-{number}"));
            simulation.put_machine(cluster, &name, &format!("{number:06}"));
            simulation.put_record(cluster, &name);
        }
        machines = count;
        measured.push(measure(&simulation, &tenants));
    }
    let [none, _, without_machines, _, all] = measured.as_slice() else {
        unreachable!("as many as were measured");
    };
    let (clusters, nodes) = (tenants.len() as f64, machines as f64);
    let a_cluster = (without_machines.resident - none.resident) * 1024.0 / clusters;
    let a_node = (all.resident - without_machines.resident) * 1024.0 / nodes;
    for (name, value, unit, limit) in [
        ("without a cluster", none.resident, "MiB", Some(60.0)),
        ("a cluster", a_cluster, "KiB", Some(150.0)),
        ("a node", a_node, "KiB", Some(3.0)),
        ("connections of a cluster", all.connections, "", Some(2.0)),
        (
            "connections to the management cluster",
            all.to_management,
            "",
            None,
        ),
        ("300 clusters, 30,000 nodes", all.resident, "MiB", None),
        ("the same, at most during the start", all.peak, "MiB", None),
    ] {
        rows.push(vec![name.to_owned(), format!("{value:.1} {unit}")]);
        suite.add(name, value, unit, limit);
    }
    println!();
    print_table(&["memory of one controller", "value"], &rows);
    suite
}

/// What a controller has once it is settled.
struct Measured {
    /// In MiB.
    resident: f64,
    /// In MiB.
    peak: f64,
    /// Of each cluster.
    connections: f64,
    to_management: f64,
}

/// Starts one, which looks after all clusters that there are.
fn measure(simulation: &Simulation, tenants: &[Tenant]) -> Measured {
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
        resident: resident_memory(controller.pid()),
        peak: peak_memory(controller.pid()),
        connections: open as f64 / tenants.len().max(1) as f64,
        to_management: simulation.management.open_connections() as f64,
    };
    println!(
        "{} clusters: {:.1} MiB, at most {:.1}; connections {:.2} and {}",
        tenants.len(),
        measured.resident,
        measured.peak,
        measured.connections,
        measured.to_management,
    );
    measured
}
