//! A test namespace that floods the turns for Events.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::unshared::Unshared;

use crate::object_key::ObjectKey;
use crate::turns::FairRate;

/// The results of 1,000 writes in one namespace, and of a later write in another namespace.
pub(super) struct Flooded<T> {
    pub(super) flood: Vec<T>,
    pub(super) victim: T,
    /// The number of calls whose path contains the flooding namespace, and of calls whose path contains the other
    /// namespace.
    pub(super) calls: [usize; 2],
}

/// Makes 1,000 writes in one namespace, and then one write in another namespace. All writes share this rate, and an API
/// server that returns these responses by path.
pub(super) async fn flooded<T, F: Future<Output = T>>(
    rate: Rate,
    answer: impl Fn(&str) -> Bytes + Send + 'static,
    write: impl Fn(Client, Arc<FairRate>, ObjectKey) -> F,
) -> Flooded<T> {
    let asked: Arc<Unshared<Vec<String>>> = Arc::default();
    let noted = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path();
        noted.lock().push(path.to_owned());
        let response = Response::new(Full::new(answer(path)));
        ready(Ok::<_, Infallible>(response))
    });
    let client = Client::new(service, "default");
    let rate = Arc::new(FairRate::new(rate));
    let write = |namespace: &str, name: String| {
        let key = ObjectKey::new(namespace, name);
        Box::pin(write(client.clone(), rate.clone(), key))
    };
    let flood = (0..1000).map(|number| write("tenant-a", number.to_string()));
    let flood = futures::future::join_all(flood);
    let victim = async {
        tokio::task::yield_now().await;
        write("tenant-b", "prod-1".to_owned()).await
    };

    let (flood, victim) = futures::join!(flood, victim);

    let calls = ["tenant-a", "tenant-b"].map(|namespace| {
        let part = format!("/namespaces/{namespace}/");
        let asked = asked.lock();
        asked.iter().filter(|path| path.contains(&part)).count()
    });
    Flooded {
        flood,
        victim,
        calls,
    }
}
