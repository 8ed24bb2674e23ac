//! The addresses for `/metrics` and for the probes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use node_attestation_runtime::diagnostics::{ServedPaths, serve};
use node_attestation_runtime::metrics::Metrics;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::error::{BoxError, explain};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics and probes (plain HTTP)")]
pub(super) struct DiagnosticsArguments {
    /// Address for /metrics, such as :8080 or 127.0.0.1:8080. Without this option, the controller does not serve
    /// metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<BindAddress>,
    /// Address for /healthz and /readyz, such as :9440. Without this option, the controller does not serve probes
    #[arg(long, value_name = "ADDRESS")]
    health_addr: Option<BindAddress>,
}

impl DiagnosticsArguments {
    /// Creates the metrics and starts the servers. If no address is configured, the metrics are off. The servers run
    /// until the result is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the controller cannot listen on an address.
    pub(super) async fn open(self) -> Result<(Metrics, JoinSet<()>), BoxError> {
        let mut servers = JoinSet::new();
        if self.metrics_bind_address.is_none() && self.health_addr.is_none() {
            return Ok((Metrics::default(), servers));
        }
        let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
        for (option, pages, address) in [
            (
                "--metrics-bind-address",
                ServedPaths::Metrics,
                self.metrics_bind_address,
            ),
            ("--health-addr", ServedPaths::Health, self.health_addr),
        ] {
            let Some(address) = address else { continue };
            let listener = address.listen().await.map_err(explain(option))?;
            servers.spawn(serve(listener, pages, metrics.clone()));
        }
        Ok((metrics, servers))
    }
}

/// An address to listen on. Without a host, all addresses of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BindAddress {
    One(SocketAddr),
    All(u16),
}

impl BindAddress {
    async fn listen(self) -> Result<TcpListener, std::io::Error> {
        match self {
            Self::One(address) => TcpListener::bind(address).await,
            Self::All(port) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
                Ok(listener) => Ok(listener),
                // The machine might not support IPv6.
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
            },
        }
    }
}

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            || format!("invalid value {text:?}: must be an address with a port, such as :8080");
        match text.strip_prefix(':') {
            Some(port) => port.parse().map(Self::All).map_err(|_| invalid()),
            None => text.parse().map(Self::One).map_err(|_| invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostics_address_has_a_port_and_an_optional_host() {
        let one = |text: &str| Ok(BindAddress::One(text.parse().unwrap()));
        assert_eq!(":8080".parse(), Ok(BindAddress::All(8080)));
        assert_eq!("127.0.0.1:8080".parse(), one("127.0.0.1:8080"));
        assert_eq!("[::1]:8080".parse(), one("[::1]:8080"));
        for wrong in ["", ":", "8080", "127.0.0.1", "localhost:8080", ":65536"] {
            let reason =
                format!("invalid value {wrong:?}: must be an address with a port, such as :8080");
            assert_eq!(wrong.parse::<BindAddress>(), Err(reason));
        }
    }

    #[tokio::test]
    async fn diagnostics_without_an_address_open_no_port_and_keep_no_data() {
        let none = DiagnosticsArguments {
            metrics_bind_address: None,
            health_addr: None,
        };

        let (metrics, servers) = none.open().await.unwrap();

        assert!(servers.is_empty());
        let format = node_attestation_runtime::metrics::Format::OpenMetrics;
        assert_eq!(metrics.text(format), "");
    }
}
