//! Tests of the connections to an API server: their number is small, and dead connections are detected and replaced.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::{Api, ListParams, WatchParams};
use kubelet_attestation::errors::error_chain;
use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Kubeconfig, Route, Times, Verb,
};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::controller::{Bed, Machine, PATIENCE, is_issued};
use node_attestation_runtime::capi::{ObjectKey, TenantKubeconfig};
use node_attestation_runtime::client::{ClusterAccess, EgressPolicy};

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");

/// The API server's limit on calls over one connection. The limit is the same as in kube-apiserver.
const STREAMS: usize = 100;

fn admin(server: &ApiServer) -> Kubeconfig {
    let admin = server.admin_certificate();
    server.kubeconfig().client_certificate(&admin)
}

fn tenant(kubeconfig: &Kubeconfig) -> Client {
    let mut egress = EgressPolicy::STRICT;
    egress.insecure_allow_loopback = true;
    let kubeconfig = TenantKubeconfig::parse(kubeconfig.to_yaml().as_bytes(), egress).unwrap();
    kubeconfig
        .access(&ObjectKey::new("tenant-a", "prod-1"))
        .unwrap()
        .client()
        .clone()
}

async fn operator(server: &ApiServer) -> Client {
    let scratch = Scratch::new("connections");
    let path = scratch.write("kubeconfig", admin(server).to_yaml());
    let access = ClusterAccess::from_kubeconfig(&path).await.unwrap();
    access.client().clone()
}

async fn list(client: &Client) -> Result<usize, String> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let list = requests.list(&ListParams::default()).await;
    list.map(|list| list.items.len())
        .map_err(|error| error_chain(&error))
}

/// Watches until the watch ends.
async fn watch(client: &Client) -> Result<(), String> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let watch = requests.watch(&WatchParams::default(), "0").await;
    let mut watch = Box::pin(watch.map_err(|error| error_chain(&error))?);
    while let Some(event) = watch.next().await {
        event.map_err(|error| error_chain(&error))?;
    }
    Ok(())
}

fn watches(server: &ApiServer, count: usize) {
    server.wait_for(count, PATIENCE, |request| request.query.contains("watch="));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_watches_share_one_connection() {
    let server = ApiServer::start();
    for client in [tenant(&admin(&server)), operator(&server).await] {
        let before = server.connections();
        let (watching, all) = (client.clone(), client.clone());
        tokio::spawn(async move { join_all((0..8).map(|_| watch(&watching))).await });
        let lists = join_all((0..16).map(|_| list(&all))).await;

        assert!(lists.iter().all(|list| *list == Ok(0)), "{lists:?}");
        watches(&server, 8);
        assert_eq!(server.connections() - before, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_over_the_stream_limit_open_another_connection() {
    let server = ApiServer::start();
    let client = operator(&server).await;
    let watching = client.clone();
    tokio::spawn(async move { join_all((0..STREAMS + 1).map(|_| watch(&watching))).await });
    watches(&server, STREAMS + 1);

    assert_eq!(list(&client).await, Ok(0));
    assert_eq!(server.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_is_used_for_an_api_server_without_http_2() {
    let server = ApiServer::start();
    server.inject_connection(Times::always(), ConnectionFault::OnlyHttp1);
    for client in [tenant(&admin(&server)), operator(&server).await] {
        let before = server.connections();
        let watching = client.clone();
        tokio::spawn(async move { watch(&watching).await });
        for _ in 0..3 {
            assert_eq!(list(&client).await, Ok(0));
        }

        watches(&server, 1);
        // The watch uses one connection, and the calls use the other connections.
        assert!(server.connections() - before <= 4);
        let lists = join_all((0..16).map(|_| list(&client))).await;
        assert!(lists.iter().all(|list| *list == Ok(0)), "{lists:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_reopened() {
    let server = ApiServer::start();
    let client = tenant(&admin(&server));
    assert_eq!(list(&client).await, Ok(0));
    server.drop_connections();
    let closed = || (server.open_connections() == 0).then_some(());
    poll(PATIENCE, closed).unwrap();

    // The first call might have used the connection before the client detected that it was closed.
    let again = list(&client).await;
    assert!(again.is_ok() || list(&client).await.is_ok(), "{again:?}");
    assert_eq!(server.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_call_does_not_close_the_shared_connection() {
    let server = ApiServer::start();
    let client = tenant(&admin(&server));
    let watching = client.clone();
    let watched = tokio::spawn(async move { watch(&watching).await });
    watches(&server, 1);
    server.inject(Route::list(), Times::once(), Fault::Hang);
    let calling = client.clone();
    let called = tokio::spawn(async move { list(&calling).await });
    server.wait_for(1, PATIENCE, |request| request.verb == Verb::List);
    called.abort();
    assert!(called.await.unwrap_err().is_cancelled());
    assert_eq!(server.connections(), 1);

    assert_eq!(list(&client).await, Ok(0));
    assert_eq!(list(&client).await, Ok(0));
    assert_eq!(server.connections(), 2);
    assert_eq!(server.open_connections(), 2);
    assert!(!watched.is_finished());
}

#[tokio::test]
async fn a_name_that_resolves_to_loopback_is_refused_before_any_connection() {
    let server = ApiServer::start();
    let here = format!("https://localhost:{}", server.address().port());
    let text = admin(&server).server(&here).to_yaml();
    let kubeconfig = TenantKubeconfig::parse(text.as_bytes(), EgressPolicy::STRICT).unwrap();
    let access = kubeconfig
        .access(&ObjectKey::new("tenant-a", "prod-1"))
        .unwrap();

    let error = list(access.client()).await.unwrap_err();

    assert!(
        error.contains("is refused: it is a loopback address"),
        "{error}"
    );
    assert_eq!(server.connections(), 0);
}

/// A relay that forwards connections, and can stop forwarding without closing them.
struct Relay {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = stopped.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let is_stopped = is_stopped.clone();
                    std::thread::spawn(move || pass(from, to, &is_stopped));
                }
            }
        });
        Self { address, stopped }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_stopped: &AtomicBool) {
    let mut piece = [0; 16 * 1024];
    while let Ok(read @ 1..) = io::Read::read(&mut from, &mut piece) {
        while is_stopped.load(Ordering::Relaxed) {
            std::thread::park();
        }
        if io::Write::write_all(&mut to, &piece[..read]).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_dead_connection_is_detected_by_pings() {
    let server = ApiServer::start();
    let relay = Relay::to(server.address());
    let kubeconfig = admin(&server).server(&format!("https://{}", relay.address));
    let client = tenant(&kubeconfig);
    assert_eq!(list(&client).await, Ok(0));
    let watching = client.clone();
    let watched = tokio::spawn(async move { watch(&watching).await });
    // Only the clock of this runtime is paused, and not the server's clock.
    tokio::task::yield_now().await;
    // The server runs in a different runtime, in real time, so this runtime can only poll it.
    let both = async {
        while server.requests().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let both = tokio::time::timeout(Duration::from_secs(60), both).await;
    assert!(both.is_ok(), "{} requests", server.requests().len());
    relay.stopped.store(true, Ordering::Relaxed);
    tokio::time::pause();
    let begun = tokio::time::Instant::now();

    let ended = watched.await.unwrap();

    assert!(ended.is_err());
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn each_served_cluster_has_one_separate_connection() {
    let bed = Bed::null(&[ONE, TWO]);
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();

    for machine in [ONE, TWO] {
        assert!(is_issued(&bed.wait_for_answer(&bed.stamped(machine))));
    }

    // One of the connections is for the Lease calls.
    assert!(bed.server.open_connections() <= 2);
    assert!(bed.server.connections() <= 2);
}
