use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use node_attestation_core::refusal::Denial;
use node_attestation_core::verifier::{InsecureVerifier, Verifier};
use prometheus_client::metrics::MetricType;

use super::catalogue::{ALL, Metric};
use super::clusters::{COPIED, ClusterReport};
use super::*;

mod alerts;

/// The metrics of a process in which every event has occurred once.
fn busy() -> (Metrics, Vec<Box<dyn std::any::Any>>) {
    let metrics = Metrics::new("1.2.3");
    let took = Duration::from_millis(3);
    metrics.decided(("issued", "FirstJoin"), Some("aws"), took);
    metrics.record_written("create", Written::Ok);
    metrics.status_written(Written::Conflict);
    metrics.cloud_called(("ec2", "DescribeInstances"), CloudResult::Throttled);
    metrics.signer_called("Sign", "OK", took);
    metrics.signer_problems(7);
    let cluster = metrics.cluster("tenant-a", "prod-1");
    cluster.report(report);
    cluster.decided((DENIED, "NameTaken"), Some("aws"), took);
    let pending = Pending::default();
    pending.add(1, 1);
    cluster.answering(pending);
    let lease = metrics.lease("controller");
    lease.taken(Instant::now());
    let watch = metrics.watch("Machine");
    watch.failed();
    let requests = cluster.watch("CertificateSigningRequest");
    requests.listed();
    let kept: Vec<Box<dyn std::any::Any>> = vec![
        Box::new(cluster),
        Box::new(lease),
        Box::new(watch),
        Box::new(requests),
    ];
    (metrics, kept)
}

fn report() -> ClusterReport {
    ClusterReport {
        phase: "serving",
        conditions: vec![("Ready", "true")],
        records: Some((3, 1)),
        earliest_expiry: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)),
        overdue: Some(4),
        exempt: Some(5),
        overlaps: Some(7),
        approvals: BTreeMap::from([("KubectlApprove".to_owned(), 6)]),
        expiring: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(2000)),
        unmeasured: Some(2),
    }
}

impl Metric {
    /// The name of the metric in a query, without the suffix of a histogram.
    fn name(&self) -> String {
        let base = self.base;
        match self.kind {
            MetricType::Counter => format!("{base}_total"),
            MetricType::Info => format!("{base}_info"),
            MetricType::Gauge | MetricType::Histogram | MetricType::Unknown => base.to_owned(),
        }
    }
}

/// The names of the samples in a text in the Prometheus format, without the suffixes of histograms, each with the
/// labels of all its series.
fn scraped(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let stem = ["_bucket", "_sum", "_count"].iter();
        let mut stem = stem.filter_map(|suffix| name.strip_suffix(suffix));
        let name = stem.next().unwrap_or(name).to_owned();
        let labels = labels.trim_end_matches('}').split("\",");
        let labels = labels.filter_map(|label| label.split_once('='));
        let labels = labels.map(|(label, _)| label.to_owned());
        let labels = labels.filter(|label| label != "le");
        found.entry(name).or_default().extend(labels);
    }
    found
}

#[tokio::test]
async fn a_scrape_has_exactly_the_metrics_and_labels_of_the_catalogue() {
    let (metrics, _kept) = busy();
    let expected: BTreeMap<String, BTreeSet<String>> = ALL
        .iter()
        .map(|metric| {
            let labels = metric.labels.iter().map(|&label| label.to_owned());
            (metric.name(), labels.collect())
        })
        .collect();

    for format in [Format::OpenMetrics, Format::Prometheus] {
        assert_eq!(scraped(&metrics.text(format)), expected, "{format:?}");
    }
}

#[test]
fn the_page_lists_exactly_the_metrics_with_type_and_labels() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `node_attestation_") || line.starts_with("| `process_"));
    let mut told: Vec<(String, String, String)> = rows
        .map(|row| {
            let mut cells = row
                .split('|')
                .skip(1)
                .map(|cell| cell.trim().replace('`', ""));
            let mut cell = || cells.next().unwrap();
            (cell(), cell(), cell())
        })
        .collect();
    let kind = |metric: &Metric| match metric.kind {
        MetricType::Counter => "counter",
        MetricType::Histogram => "histogram",
        MetricType::Info | MetricType::Gauge | MetricType::Unknown => "gauge",
    };
    let mut expected: Vec<_> = ALL
        .iter()
        .map(|metric| {
            (
                metric.name(),
                kind(metric).to_owned(),
                metric.labels.join(", "),
            )
        })
        .collect();
    told.sort();
    expected.sort();

    assert_eq!(told, expected);
}

#[tokio::test]
async fn clusters_beyond_the_limit_count_as_stopped() {
    let (metrics, _kept) = busy();
    let has = |line: &str| {
        let text = metrics.text(Format::OpenMetrics);
        text.lines().any(|one| one.starts_with(line))
    };
    assert!(!has(r#"node_attestation_clusters{phase="stopped"}"#));

    metrics.left_out_clusters(3);

    assert!(has(r#"node_attestation_clusters{phase="stopped"} 3.0"#));
    assert!(has(r#"node_attestation_clusters{phase="serving"} 1.0"#));
}

#[tokio::test]
async fn each_metric_has_its_counted_value() {
    let (metrics, _kept) = busy();
    let text = metrics.text(Format::OpenMetrics);

    for line in [
        r#"node_attestation_build_info{version="1.2.3"} 1"#,
        r#"node_attestation_csr_total{outcome="issued",reason="FirstJoin",provider="aws"} 1"#,
        r#"node_attestation_csr_total{outcome="denied",reason="NameTaken",provider="aws"} 1"#,
        r#"node_attestation_cluster_denials_total{namespace="tenant-a",cluster="prod-1",reason="other"} 1.0"#,
        r#"node_attestation_csr_duration_seconds_bucket{le="0.005",outcome="issued"} 1"#,
        r#"node_attestation_csr_duration_seconds_bucket{le="0.0025",outcome="issued"} 0"#,
        r#"node_attestation_pending_csrs{namespace="tenant-a",cluster="prod-1"} 1.0"#,
        r#"node_attestation_clusters{phase="serving"} 1.0"#,
        r#"node_attestation_cluster_condition{namespace="tenant-a",cluster="prod-1",type="Ready",status="true"} 1.0"#,
        r#"node_attestation_records{namespace="tenant-a",cluster="prod-1",state="tombstone"} 1.0"#,
        r#"node_attestation_earliest_expiry_timestamp_seconds{namespace="tenant-a",cluster="prod-1"} 1000.0"#,
        r#"node_attestation_overdue_nodes{namespace="tenant-a",cluster="prod-1"} 4.0"#,
        r#"node_attestation_exempt_nodes{namespace="tenant-a",cluster="prod-1"} 5.0"#,
        r#"node_attestation_exempt_overlaps{namespace="tenant-a",cluster="prod-1"} 7.0"#,
        r#"node_attestation_other_serving_approvals{namespace="tenant-a",cluster="prod-1",approver="KubectlApprove"} 6.0"#,
        r#"node_attestation_endorsement_certificate_expiry_timestamp_seconds{namespace="tenant-a",cluster="prod-1"} 2000.0"#,
        r#"node_attestation_unmeasured_machines{namespace="tenant-a",cluster="prod-1"} 2.0"#,
        r#"node_attestation_leader{lease="controller"} 1.0"#,
        r#"node_attestation_terms_total{lease="controller"} 1"#,
        r#"node_attestation_watch_up{kind="Machine"} 0.0"#,
        r#"node_attestation_watch_up{kind="CertificateSigningRequest",namespace="tenant-a",cluster="prod-1"} 1.0"#,
        r#"node_attestation_watch_failures_total{kind="Machine"} 1"#,
        r#"node_attestation_record_writes_total{operation="create",result="ok"} 1"#,
        r#"node_attestation_status_writes_total{result="conflict"} 1"#,
        r#"node_attestation_cloud_requests_total{service="ec2",operation="DescribeInstances",result="throttled"} 1"#,
        "node_attestation_signer_problems 7",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test]
async fn the_series_of_a_cluster_a_watch_and_a_lease_end_with_them() {
    let (metrics, kept) = busy();
    drop(kept);

    let text = metrics.text(Format::OpenMetrics);

    assert!(!text.contains("tenant-a"), "{text}");
    assert!(!text.contains("watch_up"), "{text}");
    assert!(!text.contains("node_attestation_leader"), "{text}");
}

#[tokio::test]
async fn the_denials_of_a_cluster_have_at_most_six_series() {
    let metrics = Metrics::new("1");
    let cluster = metrics.cluster("tenant-a", "prod-1");
    let others = Denial::CATALOGUE.iter().map(|reason| reason.name);
    let others: Vec<&str> = others.filter(|name| !COPIED.contains(name)).collect();

    for &reason in others.iter().chain(&COPIED) {
        cluster.decided((DENIED, reason), None, Duration::ZERO);
    }
    cluster.decided(("failed", "EvidenceExpired"), None, Duration::ZERO);

    let text = metrics.text(Format::OpenMetrics);
    let series = |reason: &str, count: usize| {
        let labels = r#"namespace="tenant-a",cluster="prod-1""#;
        format!("node_attestation_cluster_denials_total{{{labels},reason=\"{reason}\"}} {count}.0")
    };
    let mut expected: BTreeSet<String> = COPIED.iter().map(|reason| series(reason, 1)).collect();
    expected.insert(series("other", others.len()));
    let found = text.lines().filter(|line| line.contains("denials_total{"));
    assert_eq!(found.map(str::to_owned).collect::<BTreeSet<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_pending_metric_follows_the_oldest_remaining_request() {
    let metrics = Metrics::new("1");
    let cluster = metrics.cluster("a", "b");
    let pending = Pending::default();
    cluster.answering(pending.clone());
    let age = || {
        let text = metrics.text(Format::OpenMetrics);
        let oldest = |line: &&str| line.starts_with("node_attestation_oldest_pending_csr_seconds{");
        let line = text.lines().find(oldest).unwrap().to_owned();
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert!(age().abs() < f64::EPSILON);

    // The requests are from 1970, from 2001 and, because of another machine's clock, from 2300.
    for (created, number) in [(0, 1), (1_000_000_000, 2), (10_413_792_000, 3)] {
        pending.add(created, number);
    }
    let first = age();
    pending.remove(0, 1);
    let second = age();
    pending.remove(1_000_000_000, 2);

    assert!(
        (first - second - 1_000_000_000.0).abs() < 60.0,
        "{first} {second}"
    );
    assert!(age().abs() < f64::EPSILON);
}

#[tokio::test]
async fn disabled_metrics_keep_no_data() {
    let metrics = Metrics::default();
    metrics.decided(("issued", "Issued"), None, Duration::ZERO);
    let cluster = metrics.cluster("a", "b");
    cluster.report(|| unreachable!("nobody asks"));

    assert_eq!(metrics.text(Format::OpenMetrics), "");
    assert_eq!(metrics.live(), Ok(()));
    assert_eq!(metrics.ready(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_loop_is_named_until_it_reports_or_ends() {
    let metrics = Metrics::new("1");
    let beat = metrics.heartbeat("the election", Duration::from_mins(1));
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(metrics.live(), Ok(()));
    tokio::time::advance(Duration::from_secs(1)).await;

    let error = metrics.live().unwrap_err();
    assert_eq!(error.to_string(), "no heartbeat for 61 s: the election");

    beat.beat();
    assert_eq!(metrics.live(), Ok(()));
    tokio::time::advance(Duration::from_secs(61)).await;
    drop(beat);
    assert_eq!(metrics.live(), Ok(()));
}

#[tokio::test]
async fn a_process_stays_ready_after_it_listed_each_kind_once() {
    let metrics = Metrics::new("1");
    let error = || metrics.ready().unwrap_err().to_string();
    assert_eq!(error(), "starting");
    metrics.require_lists(&["Cluster", "Machine"]);
    let (clusters, machines) = (metrics.watch("Cluster"), metrics.watch("Machine"));
    machines.holds();
    assert_eq!(error(), "not listed yet: Cluster, Machine");
    clusters.listed();
    assert_eq!(error(), "not listed yet: Machine");

    machines.listed();
    assert_eq!(metrics.ready(), Ok(()));
    machines.failed();
    drop(clusters);
    assert_eq!(metrics.ready(), Ok(()));
}

#[tokio::test]
async fn each_reason_for_a_denial_of_a_served_provider_is_counted_from_0() {
    let metrics = Metrics::new("1");
    let verifier: [Arc<dyn Verifier>; 1] = [Arc::new(InsecureVerifier)];

    metrics.serves(&Verifiers::from_iter(verifier));

    let text = metrics.text(Format::OpenMetrics);
    for reason in Denial::CATALOGUE {
        let series = format!(
            r#"node_attestation_csr_total{{outcome="denied",reason="{}",provider="insecure"}} 0"#,
            reason.name
        );
        assert!(text.lines().any(|line| line == series), "{series}\n{text}");
    }
    let all = text.matches("node_attestation_csr_total{").count();
    assert_eq!(all, Denial::CATALOGUE.len());
}

#[test]
fn labels_have_no_values_that_a_tenant_can_choose_except_names() {
    let labels = ALL.iter().flat_map(|metric| metric.labels);
    let labels: BTreeSet<&str> = labels.copied().collect();

    let of_names = ["namespace", "cluster"];
    let of_program = [
        "approver",
        "code",
        "kind",
        "lease",
        "operation",
        "outcome",
        "phase",
        "provider",
        "reason",
        "result",
        "service",
        "state",
        "status",
        "type",
        "version",
    ];
    assert_eq!(labels, of_names.into_iter().chain(of_program).collect());
}
