//! Scrapes of a controller's metrics, and its probes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use kubelet_authenticator_test_support::process::{free_port, poll};

use crate::controller::PATIENCE;

/// The deadline for one response.
const DEADLINE: Duration = Duration::from_secs(60);

/// The addresses of a controller's metrics and probes, on free ports.
#[derive(Debug, Clone, Copy)]
pub struct Diagnostics {
    /// The address of `/metrics`.
    pub metrics: SocketAddr,
    /// The address of `/healthz` and `/readyz`.
    pub health: SocketAddr,
}

impl Default for Diagnostics {
    fn default() -> Self {
        let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        Self {
            metrics: address(),
            health: address(),
        }
    }
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The response's body.
    pub body: String,
}

impl Diagnostics {
    /// The controller's options for serving at these addresses.
    pub fn arguments(self) -> [String; 2] {
        [
            format!("--metrics-bind-address={}", self.metrics),
            format!("--health-addr={}", self.health),
        ]
    }

    /// The response to a probe. `None` if there is no response.
    pub fn probe(self, path: &str) -> Option<Answer> {
        get(self.health, path, "*/*")
    }

    /// The metrics as OpenMetrics. Empty if no process serves the metrics.
    pub fn scrape(self) -> String {
        let answer = get(self.metrics, "/metrics", "application/openmetrics-text");
        answer.map(|answer| answer.body).unwrap_or_default()
    }

    /// The metrics in the format of Prometheus.
    pub fn scrape_older(self) -> String {
        let answer = get(self.metrics, "/metrics", "text/plain");
        answer.map(|answer| answer.body).unwrap_or_default()
    }

    /// Waits until the controller is ready.
    #[track_caller]
    pub fn wait_until_ready(self) {
        let ready = || self.probe("/readyz").filter(|answer| answer.status == 200);
        poll(PATIENCE, ready).unwrap_or_else(|| panic!("{:?}", self.probe("/readyz")));
    }

    /// Waits for a scrape that contains all of these lines, and returns the scrape.
    #[track_caller]
    pub fn wait_for(self, lines: &[&str]) -> String {
        let has = |text: &String| lines.iter().all(|line| has_line(text, line));
        poll(PATIENCE, || Some(self.scrape()).filter(has)).unwrap_or_else(|| {
            let text = self.scrape();
            let missing = lines.iter().filter(|line| !has_line(&text, line));
            panic!("no {:#?} in\n{text}", missing.collect::<Vec<_>>())
        })
    }
}

/// Whether the text contains this line.
pub fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|found| found == line)
}

/// The value of a series, in the form in which the metrics contain it.
pub fn value(text: &str, series: &str) -> Option<f64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

fn get(address: SocketAddr, path: &str, accept: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        body: body.to_owned(),
    })
}
