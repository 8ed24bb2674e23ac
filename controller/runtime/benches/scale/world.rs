//! A management cluster with its workload clusters, and replicas of the controller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Request;
use kube::client::Body;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::testing::cluster::AcceptAllVerifier;
use node_attestation_core::verifier::Verifiers;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::management::{Controller, Settings};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::api_server::Network;
use crate::management::{Cas, Management};
use crate::workload::Workload;

/// All simulated components, without the controller.
pub(crate) struct World {
    pub(crate) management: Arc<Management>,
    workloads: Mutex<HashMap<ObjectKey, Arc<Workload>>>,
    network: Network,
    progress: Arc<Notify>,
    start: Instant,
}

/// A replica of the controller. A replica that is dropped stops without releasing its Lease.
pub(crate) struct Replica(JoinHandle<()>);

impl Drop for Replica {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the future in simulated time, on this thread.
pub(crate) fn simulate(work: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(work);
}

fn key(number: usize) -> ObjectKey {
    ObjectKey::new(format!("t{number}"), format!("c{number}"))
}

impl World {
    pub(crate) fn new(
        clusters: usize,
        machines: usize,
        cas: Arc<Cas>,
        network: Network,
    ) -> Arc<Self> {
        let progress = Arc::new(Notify::new());
        let workload = |number| {
            (
                key(number),
                Arc::new(Workload::new(network, progress.clone())),
            )
        };
        Arc::new(Self {
            management: Arc::new(Management::new(clusters, machines, cas, network)),
            workloads: Mutex::new((0..clusters).map(workload).collect()),
            network,
            progress,
            start: Instant::now(),
        })
    }

    /// Starts a replica with this name.
    pub(crate) fn start(self: &Arc<Self>, name: &str) -> Replica {
        let management = self.management.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let management = management.clone();
            async move {
                let server = management.server.clone();
                server.serve(request, |call| management.answer(call)).await
            }
        });
        let mut settings = Settings::default();
        name.clone_into(&mut settings.candidate);
        let verifiers = |_: &KubeletAuthentication, _: &str| {
            let witness = AcceptAllVerifier {
                sees: None,
                node_name: None,
                versions: vec![kubelet_attestation::version::EvidenceVersion::parse("v1").unwrap()],
            };
            let witness: Arc<dyn node_attestation_core::verifier::Verifier> = Arc::new(witness);
            Verifiers::from_iter([witness])
        };
        let world = self.clone();
        let connect = move |key: &ObjectKey| world.access(key);
        let controller = Controller::new(&access, settings, Arc::new(verifiers))
            .connecting_by(Arc::new(connect));
        Replica(tokio::spawn(controller.run(std::future::pending())))
    }

    fn access(&self, key: &ObjectKey) -> ClusterAccess {
        let workload = self.workloads.lock().unwrap()[key].clone();
        ClusterAccess::in_memory(move |request: Request<Body>| {
            let workload = workload.clone();
            async move {
                let server = workload.server.clone();
                server.serve(request, |call| workload.answer(call)).await
            }
        })
    }

    fn count(&self, holds: impl Fn(&Workload) -> bool) -> usize {
        let workloads = self.workloads.lock().unwrap();
        workloads.values().filter(|one| holds(one)).count()
    }

    /// The seconds from the start until all requests are answered. Infinite if this takes longer than `at_most`.
    pub(crate) async fn all_issued(&self, at_most: Duration) -> f64 {
        let waiting = async {
            while self.count(|one| one.issued().is_none()) > 0 {
                self.progress.notified().await;
            }
        };
        if timeout(at_most, waiting).await.is_ok() {
            return self.start.elapsed().as_secs_f64();
        }
        let waiting = self.count(|one| one.issued().is_none());
        println!("{waiting} clusters are not served");
        f64::INFINITY
    }

    /// Replaces every workload cluster's API server with a new one that has a pending request. The current leader does
    /// not receive these requests.
    pub(crate) fn join_again(&self) {
        for workload in self.workloads.lock().unwrap().values_mut() {
            *workload = Arc::new(Workload::new(self.network, self.progress.clone()));
        }
    }

    /// Waits until the leader is a replica other than the first one.
    pub(crate) async fn other_leader(&self, at_most: Duration) -> Instant {
        let waiting = async {
            while self.management.leaders().len() < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        drop(timeout(at_most, waiting).await);
        Instant::now()
    }

    /// The seconds from `since` until the first request is answered.
    pub(crate) async fn first_issued(&self, since: Instant, at_most: Duration) -> f64 {
        let waiting = async {
            while self.count(|one| one.issued().is_some()) == 0 {
                self.progress.notified().await;
            }
        };
        match timeout(at_most, waiting).await {
            Ok(()) => since.elapsed().as_secs_f64(),
            Err(_) => f64::INFINITY,
        }
    }

    /// The numbers of calls: to all workload clusters, to the management cluster for Secrets, and other calls to the
    /// management cluster.
    pub(crate) fn calls(&self) -> [u64; 3] {
        let workloads = self.workloads.lock().unwrap();
        let workload = workloads.values().map(|one| one.server.calls()).sum();
        let management = self.management.server.calls_by_path();
        let (secrets, others): (Vec<_>, Vec<_>) = management
            .into_iter()
            .partition(|(path, _)| path.contains("/secrets"));
        let sum = |calls: Vec<(String, u64)>| calls.iter().map(|(_, count)| count).sum();
        [workload, sum(secrets), sum(others)]
    }

    /// Prints the calls to the management cluster and to the first workload cluster.
    pub(crate) fn print_calls(&self) {
        let workload = self.workloads.lock().unwrap()[&key(0)].clone();
        for server in [&self.management.server, &workload.server] {
            for (path, count) in server.calls_by_path() {
                println!("{count} {path}");
            }
        }
    }

    /// The processor time per event, in microseconds, for this number of Machine events.
    pub(crate) async fn events(&self, count: usize) -> f64 {
        let before = processor_time();
        for number in 0..count {
            self.management.machine_changes(number % 1000);
            sleep(Duration::from_millis(1)).await;
        }
        processor_time().saturating_sub(before).as_secs_f64() * 1e6 / crate::results::float(count)
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanoseconds) = (time.tv_sec, time.tv_nsec);
    Duration::new(
        u64::try_from(seconds).unwrap(),
        u32::try_from(nanoseconds).unwrap(),
    )
}
