//! Tests of the metrics and probes of a controller for one cluster, with an API server in this process.

use std::io::Write as _;
use std::net::TcpStream;

use kubelet_authenticator_test_support::api_server::{Fault, Route, Times};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Application, Bed, Machine, PATIENCE};
use kubelet_authenticator_tests::scrape::{Answer, Diagnostics, has_line, value};

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");
const UNKNOWN: Machine = Machine::new("worker-9", "token9");

const PENDING: &str = r#"node_attestation_pending_csrs{namespace="",cluster=""}"#;
const OLDEST: &str = r#"node_attestation_oldest_pending_csr_seconds{namespace="",cluster=""}"#;

/// A controller that accepts machines without evidence.
fn bed() -> (Bed, Diagnostics) {
    let diagnostics = Diagnostics::default();
    let mut bed = Bed::insecure(&[ONE, TWO]);
    bed.setup = bed.setup.args(&diagnostics.arguments());
    (bed, diagnostics)
}

/// Creates a request that is issued, a request that is denied, and a request that remains pending. Waits for the two
/// answers.
fn three(bed: &Bed) {
    let joined = Application::insecure(ONE).put(&bed.server);
    bed.wait_for_answer(&joined);
    let denied = Application::insecure(TWO)
        .with_token_of(ONE)
        .put(&bed.server);
    bed.wait_for_answer(&denied);
    Application::insecure(UNKNOWN).put(&bed.server);
}

fn decided(outcome: &str, reason: &str, count: u32) -> String {
    format!(
        r#"node_attestation_csr_total{{outcome="{outcome}",reason="{reason}",provider="insecure"}} {count}"#
    )
}

#[test]
fn a_scrape_shows_a_join_a_denial_and_a_waiting_request() {
    let (bed, diagnostics) = bed();
    let _controller = bed.setup.start();
    diagnostics.wait_until_ready();
    three(&bed);

    let text = diagnostics.wait_for(&[
        &decided("issued", "FirstJoin", 1),
        &decided("denied", "ProviderIdOfAnotherMachine", 1),
        &decided("deferred", "MachineNotFound", 1),
        r#"node_attestation_csr_duration_seconds_count{outcome="issued"} 1"#,
        r#"node_attestation_csr_duration_seconds_count{outcome="denied"} 1"#,
        r#"node_attestation_clusters{phase="serving"} 1.0"#,
        r#"node_attestation_watch_up{kind="CertificateSigningRequest",namespace="",cluster=""} 1.0"#,
        &format!("{PENDING} 1.0"),
    ]);

    let version = format!(
        r#"node_attestation_build_info{{version="{}"}} 1"#,
        env!("CARGO_PKG_VERSION")
    );
    assert!(has_line(&text, &version), "{text}");
    let oldest = value(&text, OLDEST).unwrap();
    assert!((0.0..600.0).contains(&oldest), "{oldest}");
    for secret in ["worker-1", "token1", "test:///", "system:bootstrap"] {
        assert!(!text.contains(secret), "{secret} in\n{text}");
    }
    for csr in bed.server.csrs() {
        bed.server
            .delete_csr(csr["metadata"]["name"].as_str().unwrap());
    }
    let none = [format!("{PENDING} 0.0"), format!("{OLDEST} 0.0")];
    diagnostics.wait_for(&none.each_ref().map(String::as_str));
}

#[test]
fn a_waiting_request_is_counted_once_over_all_attempts() {
    let (bed, diagnostics) = bed();
    let controller = bed.setup.start();
    let name = Application::insecure(UNKNOWN).put(&bed.server);
    let attempts = || {
        let lines = controller.lines().into_iter();
        let fields = lines.map(|mut line| line["fields"].take());
        let decided = |fields: &serde_json::Value| {
            fields["message"] == "decided" && fields["csr"] == name.as_str()
        };
        (fields.filter(decided).count() > 2).then_some(())
    };
    poll(PATIENCE, attempts).expect("three attempts");

    diagnostics.wait_for(&[&decided("deferred", "MachineNotFound", 1)]);
}

#[test]
fn readiness_requires_the_first_list_and_reports_missing_ones() {
    let (bed, diagnostics) = bed();
    bed.server
        .inject(Route::list(), Times::always(), Fault::status(500));
    let _controller = bed.setup.start();
    let waits = Answer {
        status: 503,
        body: "not listed yet: CertificateSigningRequest\n".to_owned(),
    };
    let asked = || {
        diagnostics
            .probe("/readyz")
            .filter(|answer| *answer == waits)
    };
    poll(PATIENCE, asked).unwrap_or_else(|| panic!("{:?}", diagnostics.probe("/readyz")));
    assert_eq!(diagnostics.probe("/healthz").unwrap().status, 200);
    let broken = r#"node_attestation_watch_up{kind="CertificateSigningRequest",namespace="",cluster=""} 0.0"#;
    let failures = r#"node_attestation_watch_failures_total{kind="CertificateSigningRequest"}"#;
    let failed = || (value(&diagnostics.scrape(), failures) >= Some(1.0)).then_some(());
    poll(PATIENCE, failed).unwrap_or_else(|| panic!("{}", diagnostics.scrape()));
    diagnostics.wait_for(&[broken]);

    bed.server.clear_faults();

    diagnostics.wait_until_ready();
    // A later outage does not make the controller unready.
    bed.server
        .inject(Route::any(), Times::always(), Fault::status(500));
    bed.server.drop_connections();
    diagnostics.wait_for(&[broken]);
    assert_eq!(diagnostics.probe("/readyz").unwrap().status, 200);

    bed.server.clear_faults();

    diagnostics.wait_for(&[&broken.replace(" 0.0", " 1.0")]);
}

#[test]
fn a_thousand_silent_connections_do_not_block_the_probes() {
    let (bed, diagnostics) = bed();
    let mut controller = bed.setup.start();
    diagnostics.wait_until_ready();
    let mut silent = Vec::new();
    for number in 0..1000 {
        let address = if number % 2 == 0 {
            diagnostics.health
        } else {
            diagnostics.metrics
        };
        let mut stream = TcpStream::connect(address).unwrap();
        // Send an incomplete head, send a request without reading the response, or send nothing.
        let written = match number % 3 {
            0 => stream.write_all(b"GET /healthz HTTP/1.1\r\nA: "),
            1 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"),
            _ => Ok(()),
        };
        // The server might already have closed the connection.
        drop(written);
        silent.push(stream);
    }

    assert_eq!(diagnostics.probe("/healthz").unwrap().status, 200);
    let text = diagnostics.scrape();
    assert!(text.ends_with("# EOF\n"), "{text}");
    // Each of the two servers keeps at most 64 connections, and the controller has fewer than 64 other file
    // descriptors.
    let few = || (value(&diagnostics.scrape(), "process_open_fds") < Some(192.0)).then_some(());
    poll(PATIENCE, few).unwrap_or_else(|| panic!("{}", diagnostics.scrape()));
    let joined = Application::insecure(ONE).put(&bed.server);
    bed.wait_for_answer(&joined);
    assert!(controller.process.is_running());
}

#[test]
fn an_address_in_use_is_an_error_and_without_one_no_port_is_open() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bed = Bed::insecure(&[ONE]);
    let option = format!("--health-addr={}", taken.local_addr().unwrap());
    let mut controller = bed.setup.start_with(&[&option]);
    assert_eq!(controller.process.wait(PATIENCE).code(), Some(3));
    let log = controller.process.log().text();
    assert!(log.contains("--health-addr: "), "{log}");

    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    let pid = controller.process.pid();
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    // State 0A is LISTEN (proc_net_tcp(5)).
    let listening = sockets.lines().filter(|line| {
        let mut fields = line.split_whitespace();
        let is_listening = fields.clone().nth(3) == Some("0A");
        let inode = fields.nth(9).unwrap_or_default();
        is_listening && inodes.contains(&format!("socket:[{inode}]"))
    });
    assert_eq!(listening.count(), 0);
}
