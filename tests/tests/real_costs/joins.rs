//! Tests of joins and renewals, one at a time and 20 at the same time.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, User};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{
    Application, PATIENCE, certificate_of, is_answered, reason_of,
};
use kubelet_authenticator_tests::fleet::{Manager, authorize, grant};
use kubelet_authenticator_tests::management::{Contract, Machine, Management, WorkloadCluster};
use serde_json::json;

use crate::audit::{Audit, Calls, Mark, calls};
use crate::connections::connections;

/// The user in the manifest of permissions.
const ON_MANAGEMENT: &str = "node-attestation-controller";

/// The user in the kubeconfig that Cluster API writes.
const ON_WORKLOAD: &str = "kubernetes-admin";

const AT_ONCE: usize = 20;

struct Bed {
    management: Management,
    cluster: WorkloadCluster,
    audits: [Audit; 2],
    manager: Manager,
}

impl Bed {
    fn start() -> Self {
        let audits = [ON_MANAGEMENT, ON_WORKLOAD].map(Audit::of);
        let flags = audits[0].flags().into_iter();
        let builder = flags.fold(ControlPlane::builder(), |builder, flag| {
            builder.apiserver_arg(flag)
        });
        let management = Management::on(builder.start(), Contract::V1Beta2);
        grant(&management);
        let flags = audits[1].flags().into_iter();
        let builder = flags.fold(management.cluster("prod-1"), |builder, flag| {
            builder.apiserver_arg(flag)
        });
        let cluster = builder.create();
        let manager = Manager::null(&management, &[]);
        let authentication = authorize(&management, &cluster, &["aws"], json!({}));
        authentication.wait_until_ready(management.kubectl());
        Self {
            management,
            cluster,
            audits,
            manager,
        }
    }

    fn mark(&self) -> [Mark; 2] {
        self.audits.each_ref().map(Audit::mark)
    }

    /// The requests to both API servers since the marks.
    fn since(&self, marks: [Mark; 2]) -> Calls {
        let mut all = Calls::new();
        for (audit, mark) in self.audits.iter().zip(marks) {
            for (call, count) in audit.since(mark) {
                *all.entry(call).or_default() += count;
            }
        }
        all
    }

    /// Waits until the log contains exactly these requests. The controller writes Events after it has answered, and the
    /// API server writes its log after the request.
    #[track_caller]
    fn assert_calls(&self, marks: [Mark; 2], expected: &Calls) {
        let found = poll(PATIENCE, || {
            let found = self.since(marks);
            (found == *expected).then_some(())
        });
        if found.is_none() {
            assert_eq!(&self.since(marks), expected);
        }
    }

    /// The controller's connections to both API servers.
    fn connections(&self) -> [usize; 2] {
        let planes = [
            self.management.control_plane(),
            self.cluster.control_plane(),
        ];
        planes.map(|plane| {
            let (_, port) = plane.server().rsplit_once(':').unwrap();
            connections(self.manager.process.pid(), port.parse().unwrap())
        })
    }

    fn machine(&self, name: &str) -> Machine {
        self.cluster.machine(name).create()
    }

    fn application(&self, machine: &Machine) -> Application {
        let ca = self.cluster.control_plane().ca();
        let (node, id) = (machine.node_name(), machine.provider_id());
        Application::stamped(node, id, ca.certificate_pem())
    }

    /// Sends the requests with these kubeconfigs, and waits for their certificates.
    fn issued(&self, filed: &[(PathBuf, Application)]) -> Vec<String> {
        let plane = self.cluster.control_plane();
        std::thread::scope(|scope| {
            for (kubeconfig, application) in filed {
                scope.spawn(move || {
                    let kubectl = plane.kubectl_with(kubeconfig);
                    kubectl.create_object(&application.to_json());
                });
            }
        });
        let issued = filed.iter().map(|(_, application)| {
            let name = application.name();
            let csr = plane.wait_for_csr("the answer", |csr| {
                csr["metadata"]["name"] == *name && is_answered(csr)
            });
            assert_eq!(
                reason_of(&csr, "Approved"),
                Some("NodeNameClaimed"),
                "{csr:#}"
            );
            certificate_of(&csr).expect("a certificate")
        });
        issued.collect()
    }

    fn join(&self, machines: &[Machine]) -> Vec<PathBuf> {
        let filed: Vec<_> = machines
            .iter()
            .map(|machine| (machine.bootstrap_kubeconfig(), self.application(machine)))
            .collect();
        let certificates = self.issued(&filed);
        let joined = certificates.into_iter().zip(&filed);
        joined
            .map(|(certificate_pem, (_, application))| {
                let key_pem = application.key_pem().to_owned();
                let pair = KeyAndCertificate {
                    certificate_pem,
                    key_pem,
                };
                let plane = self.cluster.control_plane();
                plane.kubeconfig(User::Certificate(pair))
            })
            .collect()
    }
}

fn of_joins(count: usize) -> Calls {
    calls([
        ("create", "nodeidentities", count),
        ("update", "certificatesigningrequests/approval", count),
        ("update", "certificatesigningrequests/status", count),
        ("create", "events", count),
        ("patch", "machines/status", count),
        ("get", "nodes", count),
    ])
}

fn of_renewals(count: usize) -> Calls {
    calls([
        ("update", "certificatesigningrequests/approval", count),
        ("update", "certificatesigningrequests/status", count),
    ])
}

#[test]
fn a_join_costs_5_writes_and_a_renewal_2_even_in_parallel() {
    let bed = Bed::start();
    let one = [bed.machine("one")];
    let many: Vec<Machine> = (0..AT_ONCE)
        .map(|number| bed.machine(&format!("many-{number}")))
        .collect();

    let begun = bed.mark();
    let credential = bed.join(&one).remove(0);
    bed.assert_calls(begun, &of_joins(1));

    let begun_many = bed.mark();
    bed.join(&many);
    bed.assert_calls(begun_many, &of_joins(AT_ONCE));

    // The controller uses one connection to each API server for all calls and watches, and a second connection to the
    // management cluster for the Lease.
    let few = poll(PATIENCE, || {
        let [management, workload] = bed.connections();
        (management <= 2 && workload == 1).then_some(())
    });
    assert!(few.is_some(), "{:?}", bed.connections());

    let renewal = bed.mark();
    bed.issued(&[(credential, bed.application(&one[0]))]);
    bed.assert_calls(renewal, &of_renewals(1));
    // The controller makes all outstanding writes before it makes the writes for a later join.
    let later = [bed.machine("later")];
    bed.join(&later);
    let mut all = of_renewals(1);
    for (call, count) in of_joins(AT_ONCE + 2) {
        *all.entry(call).or_default() += count;
    }
    bed.assert_calls(begun, &all);

    let selector = "reason=FirstJoin";
    let events = ["get", "events", "--field-selector", selector];
    let told = bed.management.kubectl().json(events);
    assert_eq!(told["items"].as_array().map(Vec::len), Some(2 + AT_ONCE));
    let mut notes: BTreeMap<String, usize> = BTreeMap::new();
    for event in told["items"].as_array().into_iter().flatten() {
        let object = event["involvedObject"]["name"].as_str().unwrap();
        *notes.entry(object.to_owned()).or_default() += 1;
    }
    assert!(notes.values().all(|count| *count == 1), "{notes:?}");
}
