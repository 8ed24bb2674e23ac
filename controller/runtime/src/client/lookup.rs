//! Resolves names from the operator's configuration, for example the names of an API server or a cloud service.

use std::io;
use std::net::SocketAddr;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::task::spawn_blocking;
use tower::{Service, service_fn};

/// The addresses of a host, with port 0. Each address family is resolved separately, so that one lookup can succeed
/// even if the name server rejects the other lookup.
async fn addresses(host: String) -> io::Result<Vec<SocketAddr>> {
    spawn_blocking(move || kubelet_attestation_resolver::addresses(&host)).await?
}

/// Like `addresses`, for a host that a tenant can influence. `turn` is held until the lookup ends, even if the caller
/// is dropped earlier.
///
/// # Errors
///
/// Returns an error if the host has no address in either family.
pub async fn addresses_in(turn: impl Send + 'static, host: String) -> io::Result<Vec<SocketAddr>> {
    let found = spawn_blocking(move || {
        let found = kubelet_attestation_resolver::addresses(&host);
        drop(turn);
        found
    });
    found.await?
}

/// A connector that resolves names with [`addresses`].
pub(super) fn connector() -> HttpConnector<
    impl Service<
        Name,
        Response = std::vec::IntoIter<SocketAddr>,
        Error = io::Error,
        Future = impl Future<Output = io::Result<std::vec::IntoIter<SocketAddr>>> + Send,
    > + Clone
    + Send
    + Sync
    + 'static,
> {
    HttpConnector::new_with_resolver(service_fn(|name: Name| async move {
        addresses(name.as_str().to_owned())
            .await
            .map(Vec::into_iter)
    }))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connector_reaches_a_name_at_the_port_of_the_url() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = format!("http://localhost:{}", address.port());

        let reached = connector().call(server.parse().unwrap()).await.unwrap();

        let (_, from) = listener.accept().await.unwrap();
        assert_eq!(from, reached.inner().local_addr().unwrap());
    }
}
